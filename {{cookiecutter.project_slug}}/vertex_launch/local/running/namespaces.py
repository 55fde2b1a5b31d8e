"""How far this machine lets a replica have a world of its own, as it has in a container."""

import contextlib
import functools
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

SHIM = Path(__file__).with_name("init_shim.py")
PYTHON = (sys.executable, "-I", "-S")  # nothing of the launcher's environment, and quickly
PROBE_SECONDS = 10


@dataclass(frozen=True)
class Isolation:
    """What replica.py is to do before it starts a command."""

    world: str = "none"  # or "root", or "user": in a PID namespace
    buckets: Path | None = None  # the folder that a replica sees as /gcs

    def command(self, command: tuple[str, ...]) -> list[str]:
        """What starts a replica that runs this command."""
        return [*PYTHON, str(SHIM), self.world, str(self.buckets or "-"), *command]


@functools.cache
def isolation(buckets: Path | None = None) -> Isolation:
    """The best that works here, tried out: root may do it all, Linux permits it to most others, macOS nothing."""
    places = [buckets, None] if buckets and _prepared(buckets) else [None]
    for place in places:
        for world in ("root", "user"):
            if _works(Isolation(world, place)):
                return Isolation(world, place)
    return Isolation()


def _prepared(buckets: Path) -> bool:
    """Whether the folders that a mount needs are there."""
    with contextlib.suppress(OSError):
        buckets.mkdir(parents=True, exist_ok=True)
        buckets.with_name("root").mkdir(exist_ok=True)
        return True
    return False


def _works(tried: Isolation) -> bool:
    """Whether a command that must succeed does; its standard input has to stay open meanwhile."""
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        command = tried.command(("true",))
        with subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        ) as probe:
            return probe.wait(PROBE_SECONDS) == 0
    return False

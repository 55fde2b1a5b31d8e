"""Isolation of a replica, as a container would have it, as far as this machine can."""

import contextlib
import functools
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

SHIM = Path(__file__).with_name("init_shim.py")
PYTHON = (sys.executable, "-I", "-S")  # without the launcher's packages, and fast
PROBE_SECONDS = 10


@dataclass(frozen=True)
class Isolation:
    """The work of init_shim.py before it starts a command."""

    world: str = "none"  # or a PID namespace, made as "root" or "user"; or a "container", made by the command itself
    buckets: Path | None = None  # the folder that a replica sees as /gcs

    def command(self, command: tuple[str, ...]) -> list[str]:
        """The command line that runs this command in isolation."""
        return [*PYTHON, str(SHIM), self.world, str(self.buckets or "-"), *command]


@functools.cache
def isolation(buckets: Path | None = None) -> Isolation:
    """The best isolation that works in a trial: all for root, most for other users of Linux, none on macOS."""
    with contextlib.suppress(OSError):  # a trial shows whether that worked
        if buckets:
            buckets.mkdir(parents=True, exist_ok=True)
            buckets.with_name("root").mkdir(exist_ok=True)
    tried = (Isolation(world, place) for place in dict.fromkeys((buckets, None)) for world in ("root", "user"))
    return next(filter(_works, tried), Isolation())


def _works(tried: Isolation) -> bool:
    """Whether `true` succeeds in this isolation; the shim needs an open standard input meanwhile."""
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        command = tried.command(("true",))
        with subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        ) as probe:
            return probe.wait(PROBE_SECONDS) == 0
    return False

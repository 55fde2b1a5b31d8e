"""Isolation of a replica, as a container would have it, as far as this machine can."""

import contextlib
import functools
import json
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from vertex_launch.local.running import hosts

SHIM = Path(__file__).with_name("init_shim.py")
PYTHON = (sys.executable, "-I", "-S")  # without the launcher's packages, and fast
PROBE_SECONDS = 10
GCS = "/gcs"
# A probe succeeds where a replica's own name leads to an address: some systems never read /etc/hosts.
PROBE = (*PYTHON, "-c", "import os, socket; socket.gethostbyname(os.environ['HOSTNAME'])")
NOTHING = (None, None, False)
PROBED = hosts.Host("vertex-probe", hosts.LOOPBACK, 0)


@dataclass(frozen=True)
class Isolation:
    """The work of init_shim.py before it starts a command."""

    world: str = "none"  # or a PID namespace, made as "root" or "user"; or a "container", made by the command itself
    buckets: Path | None = None  # the folder that a replica sees as /gcs
    hosts: Path | None = None  # the file that a replica sees as /etc/hosts; its own name is HOSTNAME
    folders: Mapping[int, Mapping[str, Path]] = field(default_factory=dict)  # pool -> place -> a folder to see there
    layered: bool = False  # the working directory is the replica's own, as a container's layer

    def command(self, command: Sequence[str], pool: int = 0) -> list[str]:
        """Return the command line that runs this command of a pool in isolation."""
        order: dict[str, object] = {"world": self.world, "hosts": str(self.hosts or "")}
        if self.buckets:
            folders = {GCS: self.buckets, **self.folders.get(pool, {})}
            order["root"] = str(_root(self.buckets))
            order["folders"] = {place: str(folder) for place, folder in folders.items()}
            order["state"] = str(self.buckets.parent) if self.layered else ""
        return [*PYTHON, str(SHIM), json.dumps(order), *command]


@functools.cache
def isolation(buckets: Path | None = None) -> Isolation:
    """Return the best isolation that works in a trial: all for root, most for other users of Linux, none on macOS."""
    names = None
    with contextlib.suppress(OSError):  # a trial shows whether that worked
        if buckets:
            buckets.mkdir(parents=True, exist_ok=True)
            _root(buckets).mkdir(exist_ok=True)
            names = hosts.write(buckets.with_name("hosts"), [PROBED])
    return next(filter(_works, _candidates(buckets, names)), Isolation())


def _candidates(buckets: Path | None, names: Path | None) -> Iterator[Isolation]:
    """Yield isolations, the best first."""
    all_of_it = (buckets, names, bool(buckets))
    for folder, file, layered in dict.fromkeys((all_of_it, (buckets, names, False), (buckets, None, False), NOTHING)):
        for world in ("root", "user"):
            yield Isolation(world, folder, file, layered=layered)


def _root(buckets: Path) -> Path:
    """Return the empty folder beside the buckets on which a replica's root is mounted."""
    return buckets.with_name("root")


def _works(tried: Isolation) -> bool:
    """Whether a probe succeeds in this isolation; the shim needs an open standard input meanwhile."""
    name = PROBED.name if tried.hosts else "localhost"
    quiet = subprocess.DEVNULL
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        command = tried.command(PROBE)
        with subprocess.Popen(
            command, env={"HOSTNAME": name}, stdin=subprocess.PIPE, stdout=quiet, stderr=quiet
        ) as probe:
            return probe.wait(PROBE_SECONDS) == 0
    return False

"""Isolation of a replica, as a container would have it, as far as this machine can."""

import contextlib
import functools
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from vertex_launch.local.running import hosts

SHIM = Path(__file__).with_name("shim")
PYTHON = (sys.executable, "-I", "-S")  # without the launcher's packages, and fast
ENVIRONMENT = [sys.prefix] if sys.prefix != sys.base_prefix else []  # compiled modules in it are to stay
PROBE_SECONDS = 10
GCS, BUCKETS = "/gcs", "gcs"  # where a replica sees the buckets, and their folder in the launcher's
# A probe succeeds where a replica's own name leads to an address: some systems never read /etc/hosts.
PROBE = (*PYTHON, "-c", "import os, socket; socket.gethostbyname(os.environ['HOSTNAME'])")
PROBED = hosts.Host("vertex-probe", hosts.LOOPBACK, 0)


@dataclass(frozen=True)
class Isolation:
    """The work of the shim before it starts a command."""

    world: str = "none"  # or a PID namespace, made as "root" or "user"; or a "container", made by the command itself
    state: Path | None = None  # the launcher's folder, with the buckets; without it, a command's files are not its own
    mounts: bool = False  # whether a replica can see the buckets as /gcs, and other folders
    hosts: Path | None = None  # the file that a replica sees as /etc/hosts; its own name is HOSTNAME
    folders: Mapping[int, Mapping[str, Path]] = field(default_factory=dict)  # pool -> place -> what is there
    layered: bool = False  # whatever a replica writes is its own, as in a container's layer
    large: frozenset[int] = frozenset()  # pools with machines on which gcsfuse renames folders

    def command(self, command: Sequence[str], pool: int = 0, notes: Path | None = None) -> list[str]:
        """Return the command line that runs a command of a pool in isolation, and adds notes on the job to a file."""
        order: dict[str, object] = {"world": self.world}
        if self.state:
            folders = {GCS: self.state / BUCKETS, **self.folders.get(pool, {})} if self.mounts else {}
            order |= {"state": self.state.resolve(), "folders": folders, "layered": self.layered}
            order |= {"hosts": self.hosts or "", "large": pool in self.large, "notes": notes or os.devnull}
            order |= {"shared": ENVIRONMENT, "needed": [sys.base_prefix, *filter(None, sys.path)]}
        return [*PYTHON, str(SHIM), json.dumps(order, default=str), *command]


@functools.cache
def isolation(buckets: Path | None = None) -> Isolation:
    """Return the best isolation that works in a trial: all for root, most for other users of Linux, none on macOS."""
    names = None
    with contextlib.suppress(OSError):  # a trial shows whether that worked
        if buckets:
            buckets.mkdir(parents=True, exist_ok=True)
            names = hosts.write(buckets.with_name("hosts"), [PROBED])
    state = buckets and buckets.parent
    return next(filter(_works, _candidates(state, names)), Isolation(state=state))


def _candidates(state: Path | None, names: Path | None) -> Iterator[Isolation]:
    """Yield isolations, the best first."""
    kinds = ((True, names, True), (True, names, False), (True, None, False)) if state else ()
    for mounts, file, layered in (*kinds, (False, None, False)):
        for world in ("root", "user"):
            yield Isolation(world, state, mounts, file, layered=layered)


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

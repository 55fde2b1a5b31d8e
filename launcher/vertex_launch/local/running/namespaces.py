"""Isolates a replica from other processes, as a container does, if this machine supports isolation."""

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
PYTHON = (sys.executable, "-I", "-S")  # starts fast because it skips the launcher's packages
ENVIRONMENT = [sys.prefix] if sys.prefix != sys.base_prefix else []  # shared so that compiled modules persist
PROBE_SECONDS = 10
GCS, BUCKETS = "/gcs", "gcs"  # the mount point of the buckets, and their folder in the launcher's folder
# A probe succeeds if a replica's own hostname resolves to an address. Some systems never read /etc/hosts.
PROBE = (*PYTHON, "-c", "import os, socket; socket.gethostbyname(os.environ['HOSTNAME'])")
PROBED = hosts.Host("vertex-probe", hosts.LOOPBACK, 0)


@dataclass(frozen=True)
class Isolation:
    """The type of isolation that the shim sets up before it starts a command."""

    world: str = "none"  # or "root" or "user" for a PID namespace, or "container" if the command makes a container
    state: Path | None = None  # the launcher's folder with the buckets; if None, files aren't isolated
    mounts: bool = False  # whether the buckets at /gcs and other folders can be mounted
    hosts: Path | None = None  # the file to mount at /etc/hosts; HOSTNAME then sets the hostname
    folders: Mapping[int, Mapping[str, Path]] = field(default_factory=dict)  # pool -> mount point -> folder
    layered: bool = False  # whether all files that a replica writes are private, as in a container layer
    large: frozenset[int] = frozenset()  # the pools with machines on which gcsfuse renames folders

    def command(self, command: Sequence[str], pool: int = 0, notes: Path | None = None) -> list[str]:
        """Return the command line that runs a pool's command in isolation.

        The shim appends notes about the job to the `notes` file.
        """
        order: dict[str, object] = {"world": self.world}
        if self.state:
            folders = {GCS: self.state / BUCKETS, **self.folders.get(pool, {})} if self.mounts else {}
            order |= {"state": self.state.resolve(), "folders": folders, "layered": self.layered}
            order |= {"hosts": self.hosts or "", "large": pool in self.large, "notes": notes or os.devnull}
            order |= {"shared": ENVIRONMENT, "needed": [sys.base_prefix, *filter(None, sys.path)]}
        return [*PYTHON, str(SHIM), json.dumps(order, default=str), *command]


@functools.cache
def isolation(buckets: Path | None = None) -> Isolation:
    """Run test commands, and return the strongest isolation that works on this machine.

    On Linux, root can use complete isolation, and other users can use most isolation features. On macOS, replicas
    aren't isolated.
    """
    names = None
    with contextlib.suppress(OSError):  # the probe shows whether this worked
        if buckets:
            buckets.mkdir(parents=True, exist_ok=True)
            names = hosts.write(buckets.with_name("hosts"), [PROBED])
    state = buckets and buckets.parent
    return next(filter(_works, _candidates(state, names)), Isolation(state=state))


def _candidates(state: Path | None, names: Path | None) -> Iterator[Isolation]:
    """Yield the possible types of isolation, from the strongest to the weakest."""
    kinds = ((True, names, True), (True, names, False), (True, None, False)) if state else ()
    for mounts, file, layered in (*kinds, (False, None, False)):
        for world in ("root", "user"):
            yield Isolation(world, state, mounts, file, layered=layered)


def _works(tried: Isolation) -> bool:
    """Return whether a test command succeeds with this isolation. The shim requires an open pipe as standard input."""
    name = PROBED.name if tried.hosts else "localhost"
    quiet = subprocess.DEVNULL
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        command = tried.command(PROBE)
        with subprocess.Popen(
            command, env={"HOSTNAME": name}, stdin=subprocess.PIPE, stdout=quiet, stderr=quiet
        ) as probe:
            return probe.wait(PROBE_SECONDS) == 0
    return False

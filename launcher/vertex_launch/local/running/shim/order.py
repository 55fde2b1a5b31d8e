"""Defines `Order`, which the launcher passes to the shim as the JSON argument before the command."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple


class Order(NamedTuple):  # imports faster than a dataclass
    """The isolation of the command: its user, file system, and hostnames."""

    world: str  # none, root, user, or container
    state: str = ""  # the launcher's folder; if set, files that the command writes are discarded at its end
    folders: Mapping[str, str] = MappingProxyType({})  # mount point -> folder; if empty, nothing is mounted
    shared: Sequence[str] = ()  # folders of this machine in which files that the replica writes persist
    needed: Sequence[str] = ()  # folders that must be visible
    layered: bool = False  # whether overlays store all files that the command writes, not only files in /tmp
    hosts: str = ""  # the file to mount at /etc/hosts; HOSTNAME then sets the hostname
    large: bool = False  # whether gcsfuse renames folders on this machine type
    notes: str = ""  # a file for sentences about the job

"""The launcher's order: the argument of the shim in front of the command, as JSON."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple


class Order(NamedTuple):  # which is loaded faster than a dataclass
    """Surroundings of the command: its identity, file system and host names."""

    world: str  # none, root, user or container
    state: str = ""  # the launcher's folder; with it, the command has files of its own, which end with it
    folders: Mapping[str, str] = MappingProxyType({})  # place -> what is there in its file system; without, it has none
    shared: Sequence[str] = ()  # folders to share with this machine, with what the replica writes there
    needed: Sequence[str] = ()  # folders to show, wherever they are
    layered: bool = False  # whether overlays take what the command writes; else only /tmp and its like are its own
    hosts: str = ""  # the file to find at /etc/hosts; the host name is then that of the variable HOSTNAME
    large: bool = False  # whether the machine is one on which gcsfuse renames folders
    notes: str = ""  # a file for sentences on the job

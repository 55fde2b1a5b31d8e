"""Processes of replicas and the TCP connections between them, which Linux alone lists."""

import contextlib
import functools
import os
import socket
import struct
from collections.abc import Iterable, Iterator, Mapping
from signal import Signals

import psutil

# Linux lists connections over a socket, ten times as fast as in /proc/net/tcp. Source: sock_diag(7), netlink(7).
NETLINK_SOCK_DIAG, SOCK_DIAG_BY_FAMILY, DUMP, ERROR = 4, 20, 0x301, 2
EVERY_STATE = 0xFFF & ~(1 << 10)  # but TCP_LISTEN
REQUEST = struct.Struct("=IHHII BBBxI 48x")  # nlmsghdr, inet_diag_req_v2
HEADER, ENDS, INODE = struct.Struct("=IH10x"), struct.Struct(">4xHH16s16s"), struct.Struct("=68xI")  # inet_diag_msg
IPV4 = {socket.AF_INET: slice(4), socket.AF_INET6: slice(12, 16)}  # where an address has, or maps, one of IPv4

Member = tuple[str, int]  # a replica's name, and the number of one of its processes
End = tuple[str, int]  # IP address and port; 0.0.0.1 for ::1
Ends = tuple[End, End]  # a socket's own, and its peer's


def processes(numbers: Mapping[str, int]) -> dict[Member, psutil.Process]:
    """Return all processes of replicas, each after its parent; `numbers` are those of their first ones."""
    names, found = {number: name for name, number in numbers.items()}, dict[Member, psutil.Process]()
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):  # it has just ended
            if name := names.get(process.pid) or names.get(process.ppid()):
                names[process.pid] = name
                found[name, process.pid] = process
    return found


def signal_training_process(number: int, order: Signals) -> None:
    """Signal the process that has computed most among the descendants of a replica's first one."""
    with contextlib.suppress(psutil.Error, ValueError):  # it has just ended; there is none
        max([*processes({"replica": number}).values()][1:], key=_seconds).send_signal(order)


def _seconds(process: psutil.Process) -> float:
    """Return a process's processor time; 0 once it has ended."""
    try:
        times = process.cpu_times()
        return float(times.user + times.system)
    except psutil.Error:
        return 0


def connections(members: Iterable[Member]) -> dict[Ends, Member | None]:
    """Return the processes' connections from both sides, and all that were closed a minute ago, without owners."""
    owners, found = _sockets(members), dict[Ends, Member | None]()
    for family, ipv4 in IPV4.items():
        for message in _listed(family):
            port, peer_port, address, peer = ENDS.unpack_from(message)
            (inode,) = INODE.unpack_from(message)  # 0 of a closed one
            if not inode or inode in owners:
                own = socket.inet_ntoa(address[ipv4]), port
                found[own, (socket.inet_ntoa(peer[ipv4]), peer_port)] = owners.get(inode)
    return found


def links(found: Mapping[Ends, Member | None]) -> dict[Ends, tuple[Member, Member]]:
    """Return the owners of both ends of each connection between processes of replicas."""
    pairs = {ends: (member, found.get(ends[::-1])) for ends, member in found.items()}
    return {ends: (one, other) for ends, (one, other) in pairs.items() if one and other}


@functools.cache
def visible() -> bool:
    """Whether this system lists connections: macOS and some sandboxes don't."""
    with contextlib.suppress(AttributeError, OSError):
        return connections([]) is not None
    return False


def _sockets(members: Iterable[Member]) -> dict[int, Member]:
    """Return the owner of each socket by inode: of a shared one the process that has forked."""
    owners: dict[int, Member] = {}
    for member in members:
        with contextlib.suppress(OSError):  # the process has just ended
            for file in os.scandir(f"/proc/{member[1]}/fd"):
                with contextlib.suppress(OSError):  # this one has just been closed
                    kind, _, inode = os.readlink(file).partition(":")
                    if kind == "socket":
                        owners.setdefault(int(inode[1:-1]), member)
    return owners


def _listed(family: int) -> Iterator[bytes]:
    """Yield what Linux tells of each connection, as inet_diag_msg."""
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, NETLINK_SOCK_DIAG) as linux:
        header = REQUEST.size, SOCK_DIAG_BY_FAMILY, DUMP, 0, 0
        linux.send(REQUEST.pack(*header, family, socket.IPPROTO_TCP, 0, EVERY_STATE))
        while answers := linux.recv(2**16):
            while answers:
                size, kind = HEADER.unpack_from(answers)
                if kind == ERROR:
                    raise OSError("this system lists no connections")
                if kind != SOCK_DIAG_BY_FAMILY:
                    return
                yield answers[HEADER.size : size]
                answers = answers[size:]

"""Finds the processes of replicas and, on Linux, the TCP connections between them."""

import contextlib
import functools
import os
import socket
import struct
from collections.abc import Iterable, Iterator, Mapping
from signal import Signals

import psutil

# Linux lists connections through a socket ten times as fast as in /proc/net/tcp. Source: sock_diag(7), netlink(7).
NETLINK_SOCK_DIAG, SOCK_DIAG_BY_FAMILY, DUMP, ERROR = 4, 20, 0x301, 2
EVERY_STATE = 0xFFF & ~(1 << 10)  # every state except TCP_LISTEN
REQUEST = struct.Struct("=IHHII BBBxI 48x")  # nlmsghdr, inet_diag_req_v2
HEADER, ENDS, INODE = struct.Struct("=IH10x"), struct.Struct(">4xHH16s16s"), struct.Struct("=68xI")  # inet_diag_msg
OPENED = {"ActiveOpens", "PassiveOpens"}
IPV4 = {socket.AF_INET: slice(4), socket.AF_INET6: slice(12, 16)}  # the bytes of the IPv4 address

Member = tuple[str, int]  # the name of a replica and the ID of one of its processes
End = tuple[str, int]  # IP address and port; 0.0.0.1 stands for ::1
Ends = tuple[End, End]  # the address of a socket and the address of its peer


def processes(numbers: Mapping[str, int]) -> dict[Member, psutil.Process]:
    """Return all replica processes, with each parent before its children.

    `numbers` maps each replica's name to the ID of its first process.
    """
    names, found = {number: name for name, number in numbers.items()}, dict[Member, psutil.Process]()
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):  # the process has just exited
            if name := names.get(process.pid) or names.get(process.ppid()):
                names[process.pid] = name
                found[name, process.pid] = process
    return found


def signal_training_process(number: int, order: Signals) -> None:
    """Among the descendants of a replica's first process, signal the one that has used the most CPU time."""
    with contextlib.suppress(psutil.Error, ValueError):  # the process has just exited, or there is no descendant
        max([*processes({"replica": number}).values()][1:], key=_seconds).send_signal(order)


def _seconds(process: psutil.Process) -> float:
    """Return a process's CPU time in seconds, or 0 if the process has exited."""
    try:
        times = process.cpu_times()
        return float(times.user + times.system)
    except psutil.Error:
        return 0


def connections(members: Iterable[Member]) -> dict[Ends, Member | None]:
    """Map the addresses of each TCP connection of these processes to the process that owns its socket.

    Include connections on this machine that were closed within the last minute, and map them to None.
    """
    owners, found = _sockets(members), dict[Ends, Member | None]()
    for family, ipv4 in IPV4.items():
        for message in _listed(family):
            port, peer_port, address, peer = ENDS.unpack_from(message)
            (inode,) = INODE.unpack_from(message)  # 0 if the connection is closed
            if not inode or inode in owners:
                own = socket.inet_ntoa(address[ipv4]), port
                found[own, (socket.inet_ntoa(peer[ipv4]), peer_port)] = owners.get(inode)
    return found


def links(found: Mapping[Ends, Member | None]) -> dict[Ends, tuple[Member, Member]]:
    """Return each connection between two replica processes, with the processes at both ends."""
    pairs = {ends: (member, found.get(ends[::-1])) for ends, member in found.items()}
    return {ends: (one, other) for ends, (one, other) in pairs.items() if one and other}


def opened() -> tuple[str, ...]:
    """Return how many TCP connections this system has opened and accepted. Source: RFC 4022."""
    with open("/proc/net/snmp", encoding="ascii") as counters:
        names, counts = (line.split() for line in counters if line.startswith("Tcp:"))
    return tuple(count for name, count in zip(names, counts, strict=True) if name in OPENED)


@functools.cache
def visible() -> bool:
    """Return whether this system can list TCP connections. macOS and some sandboxes can't."""
    with contextlib.suppress(AttributeError, OSError, ValueError):
        return bool(opened()) and connections([]) is not None
    return False


def _sockets(members: Iterable[Member]) -> dict[int, Member]:
    """Return the process that owns each socket, keyed by the socket's inode.

    If several processes share a socket, the parent process is the owner.
    """
    owners: dict[int, Member] = {}
    for member in members:
        with contextlib.suppress(OSError):  # the process has just exited
            for file in os.scandir(f"/proc/{member[1]}/fd"):
                with contextlib.suppress(OSError):  # the file has just been closed
                    kind, _, inode = os.readlink(file).partition(":")
                    if kind == "socket":
                        owners.setdefault(int(inode[1:-1]), member)
    return owners


def _listed(family: int) -> Iterator[bytes]:
    """Yield the inet_diag_msg structure of each TCP connection in an address family."""
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, NETLINK_SOCK_DIAG) as linux:
        header = REQUEST.size, SOCK_DIAG_BY_FAMILY, DUMP, 0, 0
        linux.send(REQUEST.pack(*header, family, socket.IPPROTO_TCP, 0, EVERY_STATE))
        while answers := linux.recv(2**16):
            while answers:
                size, kind = HEADER.unpack_from(answers)
                if kind == ERROR:
                    raise OSError("this system doesn't list connections")
                if kind != SOCK_DIAG_BY_FAMILY:
                    return
                yield answers[HEADER.size : size]
                answers = answers[size:]

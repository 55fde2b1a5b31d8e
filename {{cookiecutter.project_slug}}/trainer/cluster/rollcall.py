"""Runs the startup roll call, which verifies that all replicas are present and run the same job.

Vertex AI starts each replica as soon as its machine is ready, so some replicas normally start late. While a training
framework waits for a replica, it doesn't print anything. Therefore, each replica checks in with the chief before any
framework call. The chief sends the same response to all replicas. The response reports that the run can start, that
replicas are missing, or that values differ between replicas.
"""

import asyncio
import contextlib
import json
import socket
import struct
import time
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, TypeAlias

from trainer.cluster.spec import Cluster, Node
from trainer.vertex.errors import PeerError, TrainerError

RETRY_SECONDS = 0.2
ANSWER_SECONDS = 10.0  # after the deadline, to wait for the chief's response
HEAR_SECONDS = 1.0  # after the deadline, to read messages that had arrived by then
LONGEST_LINE = 1 << 20  # bytes; enough for the addresses of some ten thousand replicas

Facts: TypeAlias = Mapping[str, str]  # values that must be the same on all training replicas: {"--seed": "0"}
NO_FACTS: Facts = MappingProxyType({})
Streams: TypeAlias = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class RollcallError(PeerError):
    """The error that is raised if replicas can't find each other.

    The error's text lists the missing replicas by pool and index.
    """


def patience(*, emulated: bool) -> float:
    """Return the number of seconds that replicas wait for each other.

    On Vertex AI, replicas wait longer, because some might start late.
    """
    return 60.0 if emulated else 600.0


def call(cluster: Cluster, timeout: float, servers: tuple[Node, ...] = (), facts: Facts = NO_FACTS) -> None:
    """Wait until every participating replica has checked in.

    Args:
        servers: the replicas that take part in the roll call but don't train. Pass the same servers on every replica.
        facts: this replica's values that must be the same on all training replicas.

    Raises:
        RollcallError: If a replica is missing after `timeout` seconds or describes a different cluster.
        TrainerError: If a training replica's facts differ from the chief's.
        ClusterError: If this replica doesn't take part in the roll call.
    """
    began, everyone = time.monotonic(), (*cluster.nodes, *servers)
    leads = not any(node.name == cluster.name for node in servers) and cluster.rank == 0
    if len(everyone) == 1:
        return
    part = cluster, everyone, timeout, facts
    answer = asyncio.run(_lead(*part)) if leads else _check_in(*part)
    if fault := answer.get("fault"):
        raise TrainerError(f"rollcall: {fault}; use the same value on all replicas, or continue with --anyway")
    if problem := answer.get("problem"):
        waited = f"(waited {time.monotonic() - began:.0f} s)"
        raise RollcallError(f"rollcall: {problem} {waited}", absent=answer.get("absent", []))


async def _lead(cluster: Cluster, everyone: Sequence[Node], timeout: float, facts: Facts) -> Mapping[str, Any]:
    """Collect the messages from all replicas as the chief, and send them all the same response.

    Return the response. If the roll call fails, the response describes the problem.
    """
    callers, sock = _Callers(everyone), listen(cluster.chief)
    server = await asyncio.start_server(callers.meet, sock=sock, limit=LONGEST_LINE, backlog=len(everyone) + 8)
    # This process may have been unable to read until now, so messages that arrived in time are still read.
    await _within(callers.settled.wait(), timeout) or await _within(callers.settled.wait(), HEAR_SECONDS)
    problem = _absent(everyone, callers.missing) if callers.missing else ""
    if callers.stranger:
        problem = (
            f"{callers.stranger} describes a different cluster than {cluster.name};"
            " check whether replicas of two jobs use the same addresses"
        )
    fault = "" if problem else "; ".join(differences(cluster, facts, callers.facts))
    server.close()  # a replica with the response may connect to the framework here, and must not reach this server
    answer = {"problem": problem, "fault": fault, "absent": [] if callers.stranger else sorted(callers.missing)}
    await asyncio.gather(*(_answer(streams, answer) for streams in callers.present.values()))
    callers.close()
    return answer


def differences(cluster: Cluster, facts: Facts, of_others: Mapping[str, Any]) -> Iterator[str]:
    """Yield a message for each value that differs between a training replica and the chief.

    Flags that a replica's strategy doesn't have are skipped, because the difference in --strategy is already reported.
    """
    others = {node.name: of_others.get(node.name) for node in cluster.nodes[1:]}
    known = {name: other for name, other in others.items() if other and isinstance(other, dict)}
    for fact, own in facts.items():
        values = {name: str(other[fact]) for name, other in known.items() if fact in other}
        for value in dict.fromkeys(values.values()):
            if value != own:
                names = " and ".join(name for name in values if values[name] == value)
                yield f"{fact} is {value} on {names}, but {own} on {cluster.chief.name}"


class _Callers:
    """The replicas that check in with the chief.

    The chief reads all messages concurrently, so a silent replica doesn't cause delays.
    """

    def __init__(self, everyone: Sequence[Node]) -> None:
        self._addresses = [node.address for node in everyone]
        self._hearing: dict[asyncio.StreamWriter, asyncio.Task[None]] = {}
        self.missing = {node.name for node in everyone[1:]}
        self.present: dict[str, Streams] = {}
        self.facts: dict[str, Any] = {}
        self.stranger = ""  # a replica that describes a different cluster
        self.settled = asyncio.Event()

    def meet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # Closing resets the connection, so that this port is immediately free for the framework.
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._hearing[writer] = asyncio.create_task(self._hear(reader, writer))

    async def _hear(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        message = _parsed(await _line(reader))
        if not message:
            return writer.close()
        name = str(message.get("name"))
        self.present[name], self.facts[name] = (reader, writer), message.get("facts")
        self.missing.discard(name)
        if message.get("nodes") != self._addresses:
            self.stranger = name
        if self.stranger or not self.missing:
            self.settled.set()

    def close(self) -> None:
        for writer in self._hearing:
            writer.close()


async def _answer(streams: Streams, answer: Mapping[str, Any]) -> None:
    """Send the response and wait until the caller has read it and closed the connection."""
    reader, writer = streams
    writer.write(line_of(answer))
    await _within(reader.read(), ANSWER_SECONDS)


async def _within(work: Coroutine[Any, Any, Any], seconds: float) -> bool:
    """Wait for the coroutine. Return False if it takes longer than `seconds` or its connection is lost."""
    with contextlib.suppress(OSError, TimeoutError, asyncio.TimeoutError):
        await asyncio.wait_for(work, seconds)
        return True
    return False


async def _line(reader: asyncio.StreamReader) -> bytes:
    """Read and return a line. If the caller disconnects or sends too many bytes, return an empty line."""
    with contextlib.suppress(OSError, ValueError):
        return await reader.readline()
    return b""


def interface(node: Node) -> tuple[str, socket.AddressFamily]:
    """Return the host and the address family on which a replica listens.

    On a cluster, replicas listen on all interfaces, because a machine might resolve its own name to 127.0.1.1.
    """
    host = node.host if node.is_local else ""
    return host, socket.AF_INET6 if ":" in host else socket.AF_INET


def listen(node: Node) -> socket.socket:
    """Return a socket that listens on a replica's port."""
    host, family = interface(node)
    try:
        return socket.create_server((host, node.port), family=family)
    except OSError as error:
        why = str(error.strerror).partition(" (")[0]  # the rest repeats the address
        raise RollcallError(f"rollcall: can't listen on {node.address}, the address of {node.name}: {why}") from None


def _check_in(cluster: Cluster, everyone: Sequence[Node], timeout: float, facts: Facts) -> Mapping[str, Any]:
    """Check in with the chief as a worker, and return the chief's response."""
    message = {"name": cluster.name, "nodes": [node.address for node in everyone], "facts": dict(facts)}
    deadline = time.monotonic() + timeout
    problem = f"{cluster.chief.name}, the chief, isn't reachable at {cluster.chief.address}"
    while True:
        try:
            address, patience = (cluster.chief.host, cluster.chief.port), max(deadline - time.monotonic(), 0.1)
            with socket.create_connection(address, timeout=min(patience, 5)) as connection:
                problem = f"{cluster.chief.name}, the chief, is present but doesn't respond"
                connection.sendall(line_of(message))
                connection.settimeout(timeout + ANSWER_SECONDS)  # from now on, because the chief may have just started
                answer = _parsed(connection.makefile("rb").readline(LONGEST_LINE))
                if "problem" in answer:
                    return answer
        except OSError:  # the chief isn't up yet: refused, unresolved, or reset
            pass
        if time.monotonic() > deadline:
            return {"problem": problem, "absent": [cluster.chief.name]}
        time.sleep(RETRY_SECONDS)


def _absent(everyone: Sequence[Node], names: set[str]) -> str:
    listed = [node.name for node in everyone if node.name in names]
    verb = "is" if len(listed) == 1 else "are"
    return f"{', '.join(listed)} {verb} absent; {len(everyone) - len(listed)} of {len(everyone)} are present"


def line_of(message: Mapping[str, Any]) -> bytes:
    """Return the message as a line of JSON, which ends with a newline character."""
    return json.dumps(message).encode() + b"\n"


def _parsed(line: bytes) -> dict[str, Any]:
    """Return the JSON object in a line, or an empty dictionary if the line doesn't contain one."""
    try:
        message = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return message if isinstance(message, dict) else {}

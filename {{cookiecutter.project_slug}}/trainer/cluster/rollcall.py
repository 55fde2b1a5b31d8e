"""Every replica is here and is told the same, or its name is in the error.

Vertex starts replicas as their machines arrive, so late peers are normal, and a framework that waits
for one waits in silence. Before any framework call each replica therefore checks in with the chief, at
the chief's own address. The chief answers everybody at once: go, or who is absent, or what differs.
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
ANSWER_SECONDS = 10.0  # beyond the deadline, for the chief's answer
HEAR_SECONDS = 1.0  # beyond the deadline, for messages that had arrived by then
LONGEST_LINE = 1 << 20  # bytes; the addresses of some ten thousand replicas

Facts: TypeAlias = Mapping[str, str]  # what must be alike in all that train, by its name: {"--seed": "0"}
NO_FACTS: Facts = MappingProxyType({})
Streams: TypeAlias = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class RollcallError(PeerError):
    """The replicas did not find each other; the text names the absent ones by pool and index."""


def patience(*, emulated: bool) -> float:
    """Seconds for which replicas wait for one another: machines of the cloud come late, processes here do not."""
    return 60.0 if emulated else 600.0


def call(cluster: Cluster, timeout: float, servers: tuple[Node, ...] = (), facts: Facts = NO_FACTS) -> None:
    """Return once every replica that takes part has checked in.

    Args:
        servers: those that take part though they do not train; the same on every replica.
        facts: of this replica.

    Raises:
        RollcallError: somebody is absent after `timeout` seconds, or describes another cluster.
        TrainerError: somebody who trains has other facts than the chief.
        ClusterError: this replica takes no part.
    """
    began, everyone = time.monotonic(), (*cluster.nodes, *servers)
    leads = not any(node.name == cluster.name for node in servers) and cluster.rank == 0
    if len(everyone) == 1:
        return
    part = cluster, everyone, timeout, facts
    answer = asyncio.run(_lead(*part)) if leads else _check_in(*part)
    if fault := answer.get("fault"):
        raise TrainerError(f"rollcall: {fault}: give all replicas the same, or go on with --anyway")
    if problem := answer.get("problem"):
        waited = f"(waited {time.monotonic() - began:.0f} s)"
        raise RollcallError(f"rollcall: {problem} {waited}", absent=answer.get("absent", []))


async def _lead(cluster: Cluster, everyone: Sequence[Node], timeout: float, facts: Facts) -> Mapping[str, Any]:
    """The chief's part: collect, then answer all; returns the answer, which names a problem if there is one."""
    callers, sock = _Callers(everyone), listen(cluster.chief)
    server = await asyncio.start_server(callers.meet, sock=sock, limit=LONGEST_LINE, backlog=len(everyone) + 8)
    # This process may have been unable to listen until now: whoever has called in time is still heard.
    await _within(callers.settled.wait(), timeout) or await _within(callers.settled.wait(), HEAR_SECONDS)
    problem = _absent(everyone, callers.missing) if callers.missing else ""
    if callers.stranger:
        problem = f"{callers.stranger} describes another cluster than {cluster.name}; are two jobs mixed?"
    fault = "" if problem else "; ".join(_differences(cluster, facts, callers.facts))
    server.close()  # whoever has the answer may look for the framework at this address, and must not find us
    answer = {"problem": problem, "fault": fault, "absent": [] if callers.stranger else sorted(callers.missing)}
    await asyncio.gather(*(_answer(streams, answer) for streams in callers.present.values()))
    callers.close()
    return answer


def _differences(cluster: Cluster, facts: Facts, of_others: Mapping[str, Any]) -> Iterator[str]:
    """Yield a phrase for each value that replicas which train have, and the chief has not.

    Replicas with another strategy have other flags, and are told that their --strategy differs.
    """
    others = {node.name: of_others.get(node.name) for node in cluster.nodes[1:]}
    known = {name: other for name, other in others.items() if other and isinstance(other, dict)}
    for fact, own in facts.items():
        values = {name: str(other[fact]) for name, other in known.items() if fact in other}
        for value in dict.fromkeys(values.values()):
            if value != own:
                names = " and ".join(name for name in values if values[name] == value)
                yield f"{fact} is {value} in {names} and {own} in {cluster.chief.name}"


class _Callers:
    """Replicas that call, heard side by side: a port scanner that stays silent holds nobody up."""

    def __init__(self, everyone: Sequence[Node]) -> None:
        self._addresses = [node.address for node in everyone]
        self._hearing: dict[asyncio.StreamWriter, asyncio.Task[None]] = {}
        self.missing = {node.name for node in everyone[1:]}
        self.present: dict[str, Streams] = {}
        self.facts: dict[str, Any] = {}
        self.stranger = ""  # a replica that describes another cluster
        self.settled = asyncio.Event()

    def meet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # Closing resets the connection, so that this port is free for the framework at once.
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
    """Send the answer, and wait until the caller, who has read it, hangs up."""
    reader, writer = streams
    writer.write(_line_of(answer))
    await _within(reader.read(), ANSWER_SECONDS)


async def _within(work: Coroutine[Any, Any, Any], seconds: float) -> bool:
    """Wait for the work; returns False where it takes longer, or its connection is gone."""
    with contextlib.suppress(OSError, TimeoutError, asyncio.TimeoutError):
        await asyncio.wait_for(work, seconds)
        return True
    return False


async def _line(reader: asyncio.StreamReader) -> bytes:
    """Read a line; empty where the caller hangs up or sends too much."""
    with contextlib.suppress(OSError, ValueError):
        return await reader.readline()
    return b""


def interface(node: Node) -> tuple[str, socket.AddressFamily]:
    """Return where a replica listens: in a cluster everywhere, as a machine may call itself 127.0.1.1 there."""
    host = node.host if node.is_local else ""
    return host, socket.AF_INET6 if ":" in host else socket.AF_INET


def listen(node: Node) -> socket.socket:
    """Listen at a replica's port."""
    host, family = interface(node)
    try:
        return socket.create_server((host, node.port), family=family)
    except OSError as error:
        why = str(error.strerror).partition(" (")[0]  # behind it the address stands once more
        raise RollcallError(f"rollcall: cannot listen at {node.address}, the address of {node.name}: {why}") from None


def _check_in(cluster: Cluster, everyone: Sequence[Node], timeout: float, facts: Facts) -> Mapping[str, Any]:
    """A worker's part: say who is here, return the chief's answer."""
    message = {"name": cluster.name, "nodes": [node.address for node in everyone], "facts": dict(facts)}
    deadline = time.monotonic() + timeout
    problem = f"{cluster.chief.name}, the chief, is absent at {cluster.chief.address}"
    while True:
        try:
            address, patience = (cluster.chief.host, cluster.chief.port), max(deadline - time.monotonic(), 0.1)
            with socket.create_connection(address, timeout=min(patience, 5)) as connection:
                problem = f"{cluster.chief.name}, the chief, is here but gave no answer"
                connection.sendall(_line_of(message))
                connection.settimeout(timeout + ANSWER_SECONDS)  # from now on, as the chief may have begun just now
                answer = _parsed(connection.makefile("rb").readline(LONGEST_LINE))
                if "problem" in answer:
                    return answer
        except OSError:  # not there yet: refused, unresolved or reset
            pass
        if time.monotonic() > deadline:
            return {"problem": problem, "absent": [cluster.chief.name]}
        time.sleep(RETRY_SECONDS)


def _absent(everyone: Sequence[Node], names: set[str]) -> str:
    listed = [node.name for node in everyone if node.name in names]
    verb = "is" if len(listed) == 1 else "are"
    return f"{', '.join(listed)} {verb} absent; {len(everyone) - len(listed)} of {len(everyone)} are here"


def _line_of(message: Mapping[str, Any]) -> bytes:
    return json.dumps(message).encode() + b"\n"


def _parsed(line: bytes) -> dict[str, Any]:
    """Return the JSON object on a line; empty for anything else."""
    try:
        message = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return message if isinstance(message, dict) else {}

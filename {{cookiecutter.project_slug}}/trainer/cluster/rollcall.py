"""Every replica is here, or its name is in the error.

Vertex starts replicas as their machines arrive, so late peers are normal, and a framework that waits
for one waits in silence. Before any framework call each replica therefore checks in with the chief, at
the chief's own address. The chief answers everybody at once: go, or who is absent.
"""

import asyncio
import contextlib
import json
import socket
import struct
import time
from collections.abc import Coroutine, Sequence
from typing import Any, TypeAlias

from trainer.cluster.spec import Cluster, Node
from trainer.vertex.errors import PeerError

RETRY_SECONDS = 0.2
ANSWER_SECONDS = 10.0  # beyond the deadline, for the chief's answer
HEAR_SECONDS = 1.0  # beyond the deadline, for messages that had arrived by then
LONGEST_LINE = 1 << 20  # bytes; the addresses of some ten thousand replicas

Streams: TypeAlias = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class RollcallError(PeerError):
    """The replicas did not find each other; the text names the absent ones by pool and index."""


def patience(*, emulated: bool) -> float:
    """Seconds for which replicas wait for one another: machines of the cloud come late, processes here do not."""
    return 60.0 if emulated else 600.0


def call(cluster: Cluster, timeout: float, servers: tuple[Node, ...] = ()) -> None:
    """Return once every replica that takes part has checked in.

    Args:
        servers: those that take part though they do not train; the same on every replica.

    Raises:
        RollcallError: somebody is absent after `timeout` seconds, or describes another cluster.
        ClusterError: this replica takes no part.
    """
    began, everyone = time.monotonic(), (*cluster.nodes, *servers)
    leads = not any(node.name == cluster.name for node in servers) and cluster.rank == 0
    if len(everyone) == 1:
        return
    problem = asyncio.run(_lead(cluster, everyone, timeout)) if leads else _check_in(cluster, everyone, timeout)
    if problem:
        raise RollcallError(f"rollcall: {problem} (waited {time.monotonic() - began:.0f} s)")


async def _lead(cluster: Cluster, everyone: Sequence[Node], timeout: float) -> str:
    """The chief's part: collect, then answer all; returns the problem, empty if there is none."""
    callers, sock = _Callers(everyone), listen(cluster.chief)
    server = await asyncio.start_server(callers.meet, sock=sock, limit=LONGEST_LINE, backlog=len(everyone) + 8)
    # This process may have been unable to listen until now: whoever has called in time is still heard.
    await _within(callers.settled.wait(), timeout) or await _within(callers.settled.wait(), HEAR_SECONDS)
    problem = _absent(everyone, callers.missing) if callers.missing else ""
    if callers.stranger:
        problem = f"{callers.stranger} describes another cluster than {cluster.name}; are two jobs mixed?"
    server.close()  # whoever has the answer may look for the framework at this address, and must not find us
    await asyncio.gather(*(_answer(streams, problem) for streams in callers.present.values()))
    callers.close()
    return problem


class _Callers:
    """Replicas that call, heard side by side: a port scanner that stays silent holds nobody up."""

    def __init__(self, everyone: Sequence[Node]) -> None:
        self._addresses = [node.address for node in everyone]
        self._hearing: dict[asyncio.StreamWriter, asyncio.Task[None]] = {}
        self.missing = {node.name for node in everyone[1:]}
        self.present: dict[str, Streams] = {}
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
        self.present[name] = reader, writer
        self.missing.discard(name)
        if message.get("nodes") != self._addresses:
            self.stranger = name
        if self.stranger or not self.missing:
            self.settled.set()

    def close(self) -> None:
        for writer in self._hearing:
            writer.close()


async def _answer(streams: Streams, problem: str) -> None:
    """Send the answer, and wait until the caller, who has read it, hangs up."""
    reader, writer = streams
    writer.write(_line_of({"problem": problem}))
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


def _check_in(cluster: Cluster, everyone: Sequence[Node], timeout: float) -> str:
    """A worker's part: say who is here, return the chief's verdict."""
    deadline = time.monotonic() + timeout
    problem = f"{cluster.chief.name}, the chief, is absent at {cluster.chief.address}"
    while True:
        try:
            address, patience = (cluster.chief.host, cluster.chief.port), max(deadline - time.monotonic(), 0.1)
            with socket.create_connection(address, timeout=min(patience, 5)) as connection:
                problem = f"{cluster.chief.name}, the chief, is here but gave no answer"
                connection.sendall(_line_of({"name": cluster.name, "nodes": [node.address for node in everyone]}))
                connection.settimeout(timeout + ANSWER_SECONDS)  # from now on, as the chief may have begun just now
                verdict = _parsed(connection.makefile("rb").readline(LONGEST_LINE))
                if "problem" in verdict:
                    return str(verdict["problem"])
        except OSError:  # not there yet: refused, unresolved or reset
            pass
        if time.monotonic() > deadline:
            return problem
        time.sleep(RETRY_SECONDS)


def _absent(everyone: Sequence[Node], names: set[str]) -> str:
    listed = [node.name for node in everyone if node.name in names]
    verb = "is" if len(listed) == 1 else "are"
    return f"{', '.join(listed)} {verb} absent; {len(everyone) - len(listed)} of {len(everyone)} are here"


def _line_of(message: dict[str, Any]) -> bytes:
    return json.dumps(message).encode() + b"\n"


def _parsed(line: bytes) -> dict[str, Any]:
    """Return the JSON object on a line; empty for anything else."""
    try:
        message = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return message if isinstance(message, dict) else {}

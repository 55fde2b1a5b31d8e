"""Every replica is here, or its name is in the error.

Vertex starts replicas as their machines arrive, so late peers are normal, and a framework that waits
for one waits in silence. Before any framework call each replica therefore checks in with the chief, at
the chief's own address. The chief answers everybody at once: go, or who is absent.
"""

import contextlib
import json
import selectors
import socket
import struct
import time
from collections.abc import Iterator, Sequence
from typing import Any

from trainer.cluster.spec import Cluster, Node
from trainer.vertex.errors import PeerError

RETRY_SECONDS = 0.2
ANSWER_SECONDS = 10.0  # the chief's answer may come this much after its deadline, until it has heard who called by then
LONGEST_LINE = 1 << 20  # bytes; the addresses of some ten thousand replicas


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
    problem = _lead(cluster, everyone, timeout) if leads else _check_in(cluster, everyone, timeout)
    if problem:
        raise RollcallError(f"rollcall: {problem} (waited {time.monotonic() - began:.0f} s)")


def _lead(cluster: Cluster, everyone: Sequence[Node], timeout: float) -> str:
    """The chief's part: collect, then answer all; returns the problem, empty if there is none."""
    deadline = time.monotonic() + timeout
    expected = {node.name for node in everyone[1:]}
    present: dict[str, socket.socket] = {}
    problem = ""
    with listen(cluster.chief, len(expected)) as server, _Callers(server) as callers:
        while (missing := expected - present.keys()) and not problem:
            left = deadline - time.monotonic()
            arrived = callers.wait(left)
            if left < 0 and not (arrived and left > -ANSWER_SECONDS):  # who has called by then is not absent
                problem = _absent(everyone, missing)
            for connection, message in callers.heard(arrived):
                name = str(message.get("name"))
                present[name] = connection
                if message.get("nodes") != [node.address for node in everyone]:
                    problem = f"{name} describes another cluster than {cluster.name}; are two jobs mixed?"
        server.close()  # whoever has the answer may look for the framework at this address, and must not find us
        for connection in present.values():
            _send(connection, {"problem": problem})
        for connection in present.values():
            _receive(connection)  # ends when the caller, who has read the answer, hangs up
    return problem


class _Callers:
    """Everybody who called, heard side by side: a stranger who connects and stays silent holds nobody up."""

    def __init__(self, server: socket.socket) -> None:
        self._server = server
        self._lines: dict[socket.socket, bytes] = {}
        self._selector = selectors.DefaultSelector()
        self._selector.register(server, selectors.EVENT_READ)

    def wait(self, timeout: float) -> list[Any]:
        """The sockets at which something has arrived; waits for it."""
        return [key.fileobj for key, _ in self._selector.select(max(timeout, 0))]

    def heard(self, arrived: list[Any]) -> Iterator[tuple[socket.socket, dict[str, Any]]]:
        """The messages that are whole now; whoever speaks otherwise is dropped."""
        for connection in arrived:
            if connection is self._server:
                self._accept()
                continue
            part = _part(connection)
            self._lines[connection] += part
            line = self._lines[connection]
            if part and b"\n" not in part and len(line) < LONGEST_LINE:
                continue
            self._selector.unregister(connection)
            message = _parsed(line)
            if message:
                yield connection, message
            else:
                connection.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # hung up already
            connection, _ = self._server.accept()
            connection.settimeout(ANSWER_SECONDS)
            # Closing resets the connection, so that this port is free for the framework at once.
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self._lines[connection] = b""
            self._selector.register(connection, selectors.EVENT_READ)

    def __enter__(self) -> "_Callers":
        return self

    def __exit__(self, *_: object) -> None:
        self._selector.close()
        for connection in self._lines:
            connection.close()


def listen(node: Node, backlog: int) -> socket.socket:
    """Listen at the chief's port; on every interface in a cluster, where a machine may call itself 127.0.1.1."""
    host = node.host if node.is_local else ""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, node.port), family=family, backlog=backlog + 8)
    except OSError as error:
        raise RollcallError(f"rollcall: cannot listen at {node.address}, the chief's address: {error}") from None


def _check_in(cluster: Cluster, everyone: Sequence[Node], timeout: float) -> str:
    """A worker's part: say who is here, return the chief's verdict."""
    deadline = time.monotonic() + timeout
    problem = f"{cluster.chief.name}, the chief, is absent at {cluster.chief.address}"
    while True:
        try:
            address, patience = (cluster.chief.host, cluster.chief.port), max(deadline - time.monotonic(), 0.1)
            with socket.create_connection(address, timeout=min(patience, 5)) as connection:
                _send(connection, {"name": cluster.name, "nodes": [node.address for node in everyone]})
                connection.settimeout(timeout + ANSWER_SECONDS)  # from now on, as the chief may have begun just now
                verdict = _receive(connection)
                if "problem" in verdict:
                    return str(verdict["problem"])
                problem = f"{cluster.chief.name}, the chief, is here but gave no answer"
        except OSError:  # not there yet: refused, unresolved or reset
            pass
        if time.monotonic() > deadline:
            return problem
        time.sleep(RETRY_SECONDS)


def _absent(everyone: Sequence[Node], names: set[str]) -> str:
    listed = [node.name for node in everyone if node.name in names]
    verb = "is" if len(listed) == 1 else "are"
    return f"{', '.join(listed)} {verb} absent; {len(everyone) - len(listed)} of {len(everyone)} are here"


def _send(connection: socket.socket, message: dict[str, Any]) -> None:
    with contextlib.suppress(OSError):  # gone already: its own exit code speaks
        connection.sendall(json.dumps(message).encode() + b"\n")


def _receive(connection: socket.socket) -> dict[str, Any]:
    """One JSON object on a line; empty when the peer closed, sent nothing in time, or spoke otherwise."""
    try:
        with connection.makefile("rb") as stream:
            return _parsed(stream.readline(LONGEST_LINE))
    except OSError:
        return {}


def _part(connection: socket.socket) -> bytes:
    """Return the bytes that have arrived; none when the peer is gone."""
    try:
        return connection.recv(1 << 16)
    except OSError:
        return b""


def _parsed(line: bytes) -> dict[str, Any]:
    try:
        message = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return message if isinstance(message, dict) else {}

"""Every replica is here, or its name is in the error.

Vertex starts replicas as their machines arrive, so late peers are normal, and a framework that waits
for one waits in silence. Before any framework call each replica therefore checks in with the chief, at
the chief's own address. The chief answers everybody at once: go, or who is absent.
"""

import contextlib
import json
import socket
import time
from typing import Any

from trainer.cluster import Cluster, Node
from trainer.errors import TrainerError

RETRY_SECONDS = 0.2
ANSWER_SECONDS = 10.0  # the chief's answer may come this much after our own deadline: clocks start apart


class RollcallError(TrainerError):
    """Not all replicas came; the text names the absent ones by pool and index."""


def call(cluster: Cluster, timeout: float) -> None:
    """Return once every training replica has checked in.

    Raises:
        RollcallError: somebody is absent after `timeout` seconds, or describes another cluster.
    """
    if len(cluster.nodes) == 1:
        return
    deadline = time.monotonic() + timeout
    problem = _lead(cluster, deadline) if cluster.rank == 0 else _check_in(cluster, deadline)
    if problem:
        raise RollcallError(f"rollcall: {problem} (waited {timeout:g} s)")


def _lead(cluster: Cluster, deadline: float) -> str:
    """The chief's part: collect, then answer all; returns the problem, empty if there is none."""
    expected = {node.name for node in cluster.nodes[1:]}
    present: dict[str, socket.socket] = {}
    problem = ""
    with _listen(cluster.chief, len(expected)) as server:
        while expected - set(present) and not problem:
            server.settimeout(max(deadline - time.monotonic(), 0.001))
            try:
                connection, _ = server.accept()
            except TimeoutError:
                problem = _absent(cluster, expected - set(present))
                break
            name, problem = _hear(connection, cluster)
            present[name] = connection
        for connection in present.values():
            _send(connection, {"problem": problem})
            # The caller closes first, so that this port is free for the framework at once.
            _receive(connection)
            connection.close()
    return problem


def _listen(node: Node, backlog: int) -> socket.socket:
    """Listen where the cluster says the chief is; on a cloud machine that name is the machine itself."""
    family, kind, protocol, _, address = socket.getaddrinfo(node.host, node.port, type=socket.SOCK_STREAM)[0]
    server = socket.socket(family, kind, protocol)
    server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        server.bind(address)
    except OSError as error:
        server.close()
        raise RollcallError(f"rollcall: cannot listen at {node.address}, the chief's address: {error}") from None
    server.listen(backlog + 8)
    return server


def _hear(connection: socket.socket, cluster: Cluster) -> tuple[str, str]:
    """One replica's name, and what is wrong with its idea of the cluster."""
    connection.settimeout(ANSWER_SECONDS)
    message = _receive(connection)
    name = str(message.get("name", ""))
    if name and message.get("nodes") != [node.address for node in cluster.nodes]:
        return name, f"{name} describes another cluster than {cluster.name}; are two jobs mixed?"
    return name, ""


def _check_in(cluster: Cluster, deadline: float) -> str:
    """A worker's part: say who is here, return the chief's verdict."""
    problem = f"{cluster.chief.name}, the chief, is absent at {cluster.chief.address}"
    while time.monotonic() < deadline:
        try:
            with socket.create_connection((cluster.chief.host, cluster.chief.port), timeout=5) as connection:
                _send(connection, {"name": cluster.name, "nodes": [node.address for node in cluster.nodes]})
                connection.settimeout(max(deadline - time.monotonic(), 0) + ANSWER_SECONDS)
                verdict = _receive(connection)
                if "problem" in verdict:
                    return str(verdict["problem"])
                problem = f"{cluster.chief.name}, the chief, is here but gave no answer"
        except OSError:  # not there yet: refused, unresolved or reset
            pass
        time.sleep(RETRY_SECONDS)
    return problem


def _absent(cluster: Cluster, names: set[str]) -> str:
    listed = [node.name for node in cluster.nodes if node.name in names]
    verb = "is" if len(listed) == 1 else "are"
    return f"{', '.join(listed)} {verb} absent; {len(cluster.nodes) - len(listed)} of {len(cluster.nodes)} are here"


def _send(connection: socket.socket, message: dict[str, Any]) -> None:
    with contextlib.suppress(OSError):  # gone already: its own exit code speaks
        connection.sendall(json.dumps(message).encode() + b"\n")


def _receive(connection: socket.socket) -> dict[str, Any]:
    """One JSON object on a line; empty when the peer closed, sent nothing in time, or spoke otherwise."""
    try:
        with connection.makefile("rb") as stream:
            message = json.loads(stream.readline(1 << 20))
    except (OSError, ValueError):
        return {}
    return message if isinstance(message, dict) else {}

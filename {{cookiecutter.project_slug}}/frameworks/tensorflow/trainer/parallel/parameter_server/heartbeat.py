"""Heartbeats between the chief, which coordinates, and every worker and parameter server.

Servers of TensorFlow never end by themselves, and TensorFlow notices a lost one late or never. So each connects to the
chief's own address, where the roll call was. The chief sends a heartbeat every second, and they answer it; the chief's
last message is that it has finished. The system closes the connections of a process that ends, however it ends.

A message is a line with a JSON object. The first message of a connection is the same as in the roll call, so that a
worker which Vertex starts again passes its roll call here.
"""

import contextlib
import json
import selectors
import socket
import threading
import time
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any

from trainer.cluster.spec import Cluster, Node
from trainer.vertex.errors import PeerError, TrainerError
from trainer.vertex.log import warn

BEAT_SECONDS = 1.0
RETRY_SECONDS = 0.2
GO = b'{"problem": ""}\n'  # the roll call's answer
BEAT, FINISHED = b"{}\n", b'{"finished": true}\n'
LONGEST_LINE = 1 << 20  # bytes


class Heartbeats:
    """The chief's end: a thread that listens to all peers, and calls `fail` with a sentence when the run cannot go on.

    That is when a parameter server is lost, when no worker is left, or when a wait under `patience` is too long:
    at once where the connection closes, otherwise after `timeout` seconds. The run survives the loss of a worker, and
    every loss after `need_nobody`.
    """

    def __init__(self, cluster: Cluster, timeout: float, fail: Callable[[str], None]) -> None:
        self._servers = {node.name for node in cluster.servers}
        self._workers = {node.name for node in cluster.nodes[1:]}
        self._timeout = timeout
        self._fail = fail
        self._peers: dict[str, _Connection] = {}
        self._connections: set[_Connection] = set()
        self._alone_since: float | None = None
        self._patience: float | None = None  # when what is waited for has to be there
        self._needed = True  # whether the run still needs the others
        self._all_here, self._over = threading.Event(), threading.Event()
        self._selector = selectors.DefaultSelector()
        self._listener = _listen(cluster.chief)
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def wait_for_all(self) -> None:
        """Return when every worker and every parameter server serves.

        Raises:
            PeerError: somebody does not in time.
        """
        if not self._all_here.wait(self._timeout):
            absent = self._absent(self._servers | self._workers)
            raise PeerError(f"{', '.join(absent)} passed the roll call, but did not start to serve")

    @contextlib.contextmanager
    def patience(self) -> Iterator[None]:
        """The block waits for other replicas; the run ends if it takes longer than the timeout."""
        self._patience = time.monotonic() + self._timeout
        yield
        self._patience = None

    def need_nobody(self) -> None:
        """From now on no loss matters; peers that are still connected stay until the chief has finished."""
        self._needed = False

    def __enter__(self) -> "Heartbeats":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Say that the run has finished, and hang up; after an error the system does, so that the chief ends first."""
        self._over.set()
        self._thread.join(2 * BEAT_SECONDS)
        if kind:
            return
        peers = [*self._peers.values()]  # the thread may have them still, where the machine is very busy
        for peer in peers:
            peer.send(FINISHED)
        for peer in peers:
            peer.drain()  # closing with an answer unread would take back what was said last
        for connection in [*self._connections]:
            connection.socket.close()
        self._listener.close()

    def _watch(self) -> None:
        next_beat = time.monotonic()
        while not self._over.is_set():
            for key, _ in self._selector.select(BEAT_SECONDS / 4):
                if key.fileobj is self._listener:
                    self._accept()
                else:
                    self._hear(key.data)
            if time.monotonic() >= next_beat:
                next_beat += BEAT_SECONDS
                self._beat()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # hung up already
            accepted, _ = self._listener.accept()
            connection = _Connection(accepted)
            self._connections.add(connection)
            self._selector.register(accepted, selectors.EVENT_READ, connection)

    def _hear(self, connection: "_Connection") -> None:
        for message in connection.received():
            if message is None:
                self._hung_up(connection)
            elif "name" in message:
                self._greet(connection, message)

    def _greet(self, connection: "_Connection", message: dict[str, Any]) -> None:
        name = str(message["name"])
        if (name in self._peers and name in self._servers) or name not in self._servers | self._workers:
            # A parameter server that was started again has lost its variables: it has to wait for the next chief.
            self._hung_up(connection)
            return
        connection.send(GO)
        if "heartbeat" in message:
            connection.name = name
            self._peers[name] = connection
            if self._all_here.is_set() and self._needed:
                warn(f"{name} is back{self._held_up_by()}")
            if self._peers.keys() == self._servers | self._workers:
                self._all_here.set()

    def _hung_up(self, connection: "_Connection") -> None:
        if connection not in self._connections:  # it hung up twice
            return
        self._selector.unregister(connection.socket)
        connection.socket.close()
        self._connections.discard(connection)
        if self._peers.get(connection.name) is not connection:
            return
        if connection.name in self._servers:
            self._stop(f"{connection.name}, a parameter server, is gone, and its variables with it")
        else:
            del self._peers[connection.name]
            if self._all_here.is_set() and self._needed and not self._over.is_set():
                warn(f"{connection.name} is gone; {self._without_it()}")

    def _beat(self) -> None:
        now = time.monotonic()
        for name, peer in list(self._peers.items()):
            peer.send(BEAT)
            if now - peer.heard > self._timeout:
                if name in self._servers:
                    self._stop(f"{name}, a parameter server, has been silent for {self._timeout:.0f} s")
                self._hung_up(peer)
        if self._workers & self._peers.keys() or not self._all_here.is_set():
            self._alone_since = None
        elif self._alone_since is None:
            self._alone_since = now
        elif now - self._alone_since > self._timeout:
            self._stop(f"{self._lost()}: no worker came back within {self._timeout:.0f} s")
        if self._patience is not None and now > self._patience:
            lost = self._lost() or "all of them are here"
            self._stop(f"no worker finished a step within {self._timeout:.0f} s; {lost}")

    def _absent(self, names: set[str]) -> list[str]:
        return sorted(names - self._peers.keys())

    def _lost(self) -> str:
        """`workerpool1-0, workerpool1-2 are gone`; empty when every worker is here."""
        absent = self._absent(self._workers)
        return f"{', '.join(absent)} {'is' if len(absent) == 1 else 'are'} gone" if absent else ""

    def _without_it(self) -> str:
        if self._workers & self._peers.keys():
            return "the others do its part until it comes back"
        return f"no worker is left, and the run ends unless one comes back within {self._timeout:.0f} s"

    def _held_up_by(self) -> str:
        # TensorFlow updates the whole cluster at once: it takes nobody in again while another one is lost.
        lost = self._lost()
        return f", but {lost}: nobody who was lost gets work until all are back" if lost else ""

    def _stop(self, why: str) -> None:
        if self._needed and not self._over.is_set():
            self._over.set()
            self._fail(why)


class _Connection:
    """A socket that sends and receives messages; `name` is the peer's, once it has said it."""

    def __init__(self, accepted: socket.socket, timeout: float = BEAT_SECONDS) -> None:
        accepted.settimeout(timeout)
        self.socket = accepted
        self.name = ""
        self.heard = time.monotonic()
        self._rest = b""

    def send(self, message: bytes) -> None:
        with contextlib.suppress(OSError):  # gone: reading says so, too
            self.socket.sendall(message)

    def drain(self) -> None:
        """Read until the peer has hung up, or says nothing for a while."""
        with contextlib.suppress(OSError):
            while self.socket.recv(1 << 16):
                pass

    def received(self) -> Iterator[dict[str, Any] | None]:
        """The complete messages; None at the end if the peer is gone, or does not speak JSON lines."""
        try:
            part = self.socket.recv(1 << 16)
        except OSError:
            part = b""
        self.heard = time.monotonic()
        *lines, self._rest = (self._rest + part).split(b"\n")
        messages = [_parsed(line) for line in lines]
        yield from messages
        if None not in messages and (not part or len(self._rest) > LONGEST_LINE):
            yield None


def answer(cluster: Cluster, timeout: float) -> None:
    """Answer the chief's heartbeats until it has finished.

    Raises:
        PeerError: the chief ended otherwise, or has been silent for `timeout` seconds.
    """
    chief = cluster.chief
    with _connected(chief, timeout) as connected:
        connection = _Connection(connected, timeout)
        connection.send(json.dumps({"name": cluster.name, "heartbeat": True}).encode() + b"\n")
        while True:
            silent_since = time.monotonic()
            for message in connection.received():
                if message is None:
                    silent = time.monotonic() - silent_since >= timeout
                    what = f"has been silent for {timeout:.0f} s" if silent else "ended before the training did"
                    raise PeerError(f"{chief.name}, the chief, {what}")
                if "finished" in message:
                    return
                connection.send(BEAT)


def _connected(chief: Node, timeout: float) -> socket.socket:
    deadline = time.monotonic() + timeout
    while True:
        try:
            return socket.create_connection((chief.host, chief.port), timeout=5)
        except OSError:
            if time.monotonic() > deadline:
                raise PeerError(f"{chief.name}, the chief, does not listen at {chief.address}") from None
            time.sleep(RETRY_SECONDS)


def _listen(chief: Node) -> socket.socket:
    """At the chief's port; on every interface in a cluster, where a machine may call itself 127.0.1.1."""
    host = chief.host if chief.is_local else ""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, chief.port), family=family, backlog=128)
    except OSError as error:
        raise TrainerError(f"cannot listen at {chief.address}, the chief's address: {error}") from None


def _parsed(line: bytes) -> dict[str, Any] | None:
    try:
        message = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return message if isinstance(message, dict) else None

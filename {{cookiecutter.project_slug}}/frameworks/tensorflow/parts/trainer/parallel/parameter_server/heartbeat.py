"""Heartbeats between the chief, which coordinates, and every worker and parameter server.

Servers of TensorFlow never end by themselves, and TensorFlow notices a lost one late or never. So each connects to the
chief's own address, where the roll call was. The chief sends heartbeats, and they answer; its last message is that it
has finished. The system closes the connections of a process that ends, however it ends.

A message is a line with a JSON object. The first message of a connection is the same as in the roll call, so that a
worker which Vertex starts again passes its roll call here.
"""

import asyncio
import contextlib
import json
import math
import socket
import threading
import time
from collections.abc import Callable, Iterator

from trainer.cluster import rollcall
from trainer.cluster.spec import Cluster, Node
from trainer.vertex.errors import PeerError
from trainer.vertex.log import warn

BEAT_SECONDS = 0.5
GO = b'{"problem": ""}\n'  # the roll call's answer
BEAT, TOLD, FINISHED = b"{}\n", b'{"told": true}\n', b'{"finished": true}\n'


class Heartbeats(contextlib.AbstractContextManager["Heartbeats"]):
    """The chief's end: a thread that listens to all, and calls `fail` when the run cannot go on: why, who is lost.

    That is when a parameter server is lost, at once where its connection closes, otherwise after `timeout` seconds; or
    when a wait under `patience` takes as long, as where no worker is left. The run survives the loss of a worker, and
    every loss after `need_nobody`.
    """

    def __init__(self, cluster: Cluster, timeout: float, fail: Callable[[str, str], None]) -> None:
        self._servers = {node.name for node in cluster.servers}
        self._workers = {node.name for node in cluster.nodes[1:]}
        self._timeout, self._fail = timeout, fail
        self._peers: dict[str, asyncio.StreamWriter] = {}  # servers stay when they are lost, workers do not
        self._patience = math.inf  # when what is waited for has to be there
        self._needed = True  # whether the run still needs the others
        self.told = ""  # name of a replica that was told to end, and without which the run cannot go on
        self._all_here, self._over = threading.Event(), threading.Event()
        listener = rollcall.listen(cluster.chief)
        self._thread = threading.Thread(target=asyncio.run, args=(self._watch(listener),), daemon=True)
        self._thread.start()

    def wait_for_all(self) -> None:
        """Return when every worker and every parameter server serves. Raises PeerError for those that do not."""
        if not self._all_here.wait(self._timeout):
            absent = sorted((self._servers | self._workers) - self._peers.keys())
            raise PeerError(f"{', '.join(absent)} passed the roll call, but did not start to serve", absent=absent)

    @contextlib.contextmanager
    def patience(self) -> Iterator[None]:
        """The block waits for other replicas; the run ends if it takes longer than the timeout."""
        self._patience = time.monotonic() + self._timeout
        yield
        self._patience = math.inf

    def need_nobody(self) -> None:
        """From now on no loss matters; peers that are still connected stay until the chief has finished."""
        self._needed = False

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Say that the run has finished, and hang up; after an error the system does, so that the chief ends first."""
        self.need_nobody()
        if not kind:
            self._over.set()
            self._thread.join()

    async def _watch(self, listener: socket.socket) -> None:
        """Meet everybody and send heartbeats until the run is over; then let those who are here end."""
        server = await asyncio.start_server(self._meet, sock=listener, limit=rollcall.LONGEST_LINE)
        while not self._over.is_set():
            self._tell(BEAT)
            if time.monotonic() > self._patience:
                absent = self._absent_workers() or "all of them are here"
                self._stop(f"no worker finished a step within {self._timeout:.0f} s; {absent}")
            await asyncio.sleep(BEAT_SECONDS)
        server.close()
        self._tell(FINISHED)
        # Closing before they do would take back what was said last.
        if meeting := asyncio.all_tasks() - {asyncio.current_task()}:
            await asyncio.wait(meeting, timeout=4 * BEAT_SECONDS)

    def _tell(self, message: bytes) -> None:
        for peer in self._peers.values():
            if not peer.is_closing():
                peer.write(message)

    async def _meet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Let one of ours pass the roll call, or stay until it has hung up or has been silent for too long."""
        name, how = "", "is gone, and its variables with it"
        with contextlib.closing(writer):
            try:
                message = json.loads(await reader.readline())
                name = message["name"]
                # A parameter server that was started again has lost its variables: it has to wait for the next chief.
                if name in self._workers or (name in self._servers and name not in self._peers):
                    writer.write(GO)
                    if "heartbeat" in message:
                        self._arrived(name, writer)
                        while message := await asyncio.wait_for(reader.readline(), self._timeout):
                            if message == TOLD:
                                self._end_with(name)
            except asyncio.TimeoutError:  # of Python 3.10 one of its own
                how = f"has been silent for {self._timeout:.0f} s"
            except (OSError, ValueError, LookupError, TypeError, RecursionError):  # reset, or a stranger
                pass
        if self._peers.get(name) is writer:
            self._lost(name, how)

    def _arrived(self, name: str, writer: asyncio.StreamWriter) -> None:
        self._peers[name] = writer
        if self._all_here.is_set() and self._needed:
            # TensorFlow updates the whole cluster at once: it takes nobody in again while another one is lost.
            absent = self._absent_workers()
            warn(f"{name} is back" + f", but {absent}: nobody who was lost gets work until all are back" * bool(absent))
        if self._peers.keys() == self._servers | self._workers:
            self._all_here.set()

    def _end_with(self, name: str) -> None:
        """Have the run save its step and end, where it cannot do without a replica that was told to end."""
        is_server, workers = name in self._servers, self._workers & self._peers.keys()
        if self._needed and not self.told and (is_server or workers == {name}):
            self.told = name
            who = "a parameter server" if is_server else "the only worker here"
            warn(f"{name}, {who}, was told to end, and so the run ends")

    def _lost(self, name: str, how: str) -> None:
        if name in self._servers:
            self._stop(f"{name}, a parameter server, {how}", name)
            return
        del self._peers[name]
        if self._all_here.is_set() and self._needed:
            left = "the others do its part until it comes back"
            if not self._workers & self._peers.keys():
                left = f"no worker is left, and the run ends unless one comes back within {self._timeout:.0f} s"
            warn(f"{name} is gone; {left}")

    def _absent_workers(self) -> str:
        """`workerpool1-0, workerpool1-2 are gone`; empty when every worker is here."""
        absent = sorted(self._workers - self._peers.keys())
        return f"{', '.join(absent)} {'is' if len(absent) == 1 else 'are'} gone" if absent else ""

    def _stop(self, why: str, lost: str = "") -> None:
        if self._needed:
            self.need_nobody()
            self._fail(why, lost)


def answer(cluster: Cluster, timeout: float, told: threading.Event) -> None:
    """Answer the chief's heartbeats until it has finished, and say with each whether this replica was `told` to end.

    Raises PeerError where the chief ended otherwise, or has been silent for `timeout` seconds.
    """
    how = "ended before the training did"
    with _connected(cluster.chief, timeout) as connection, connection.makefile("rb") as messages:
        connection.settimeout(timeout)
        try:
            connection.sendall(json.dumps({"name": cluster.name, "heartbeat": True}).encode() + b"\n")
            for message in messages:
                if message == FINISHED:
                    return
                connection.sendall(TOLD if told.is_set() else BEAT)
        except TimeoutError:
            how = f"has been silent for {timeout:.0f} s"
        except OSError:  # the connection was reset: that is an end, too
            pass
    raise PeerError(f"{cluster.chief.name}, the chief, {how}", lost_peer=cluster.chief.name)


def _connected(chief: Node, timeout: float) -> socket.socket:
    deadline = time.monotonic() + timeout
    while True:
        try:
            return socket.create_connection((chief.host, chief.port), timeout=5)
        except OSError:
            if time.monotonic() > deadline:
                raise PeerError(f"{chief.name}, the chief, does not listen at {chief.address}") from None
            time.sleep(rollcall.RETRY_SECONDS)

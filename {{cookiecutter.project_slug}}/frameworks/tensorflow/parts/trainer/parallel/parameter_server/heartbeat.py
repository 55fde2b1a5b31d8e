"""Exchanges heartbeats between the chief and all workers and parameter servers.

TensorFlow servers never exit on their own, and TensorFlow detects a lost server late or not at all. Therefore, each
replica connects to the chief, as it does for the roll call at startup. The chief sends heartbeats, and the replicas
respond. The chief's last message reports that the run has finished. If a process exits for any reason, the operating
system closes its connections.

Each message is a JSON object on a single line. The first message on a connection is the same as in the roll call.
Therefore, a worker that Vertex AI restarts can complete its roll call on this connection.
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
GO = b'{"problem": ""}\n'  # the response of the roll call
BEAT, TOLD, FINISHED = b"{}\n", b'{"told": true}\n', b'{"finished": true}\n'


class Heartbeats(contextlib.AbstractContextManager["Heartbeats"]):
    """The chief's heartbeat thread. If the run can't continue, the thread calls `fail` with the reason.

    The run can't continue if a parameter server closes its connection, or doesn't respond for `timeout` seconds. The
    run also can't continue if a `patience` block exceeds its timeout (for example, because no workers are left). If a
    worker is lost, the run continues. After a call to `need_nobody`, the run continues no matter which replica is lost.
    """

    def __init__(self, cluster: Cluster, timeout: float, fail: Callable[[str, str], None]) -> None:
        self._servers = {node.name for node in cluster.servers}
        self._workers = {node.name for node in cluster.nodes[1:]}
        self._timeout, self._fail = timeout, fail
        self._peers: dict[str, asyncio.StreamWriter] = {}  # lost servers stay in it, lost workers don't
        self._patience = math.inf  # the deadline of the current wait
        self._needed = True  # whether the run still needs the other replicas
        self.told = ""  # name of a replica that was asked to stop, if the run can't continue without it
        self._all_here, self._over = threading.Event(), threading.Event()
        listener = rollcall.listen(cluster.chief)
        self._thread = threading.Thread(target=asyncio.run, args=(self._watch(listener),), daemon=True)
        self._thread.start()

    def wait_for_all(self) -> None:
        """Wait until every worker and parameter server has started serving.

        After the timeout, raises PeerError with the names of the missing replicas.
        """
        if not self._all_here.wait(self._timeout):
            absent = sorted((self._servers | self._workers) - self._peers.keys())
            raise PeerError(f"{', '.join(absent)} passed the roll call, but didn't start serving", absent=absent)

    @contextlib.contextmanager
    def patience(self) -> Iterator[None]:
        """Set a timeout for a block that waits for other replicas.

        If the block exceeds the timeout, the run stops.
        """
        self._patience = time.monotonic() + self._timeout
        yield
        self._patience = math.inf

    def need_nobody(self) -> None:
        """Ignore all replicas that are lost from now on.

        Connected replicas remain connected until the chief has finished.
        """
        self._needed = False

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Notify all replicas that the run has finished, and disconnect.

        If an error occurred, disconnect without notifying the replicas.
        """
        self.need_nobody()
        if not kind:
            self._over.set()
            self._thread.join()

    async def _watch(self, listener: socket.socket) -> None:
        """Accept connections and send heartbeats until the run has finished. Then let the connected replicas exit."""
        server = await asyncio.start_server(self._meet, sock=listener, limit=rollcall.LONGEST_LINE)
        while not self._over.is_set():
            self._tell(BEAT)
            if time.monotonic() > self._patience:
                absent = self._absent_workers() or "all workers are connected"
                self._stop(f"no worker finished a step within {self._timeout:.0f} s; {absent}")
            await asyncio.sleep(BEAT_SECONDS)
        server.close()
        self._tell(FINISHED)
        # Closing the connections first would discard the last message.
        if meeting := asyncio.all_tasks() - {asyncio.current_task()}:
            await asyncio.wait(meeting, timeout=4 * BEAT_SECONDS)

    def _tell(self, message: bytes) -> None:
        for peer in self._peers.values():
            if not peer.is_closing():
                peer.write(message)

    async def _meet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer a replica's roll call, and keep its connection for heartbeats.

        The connection ends if the replica disconnects, or doesn't respond within the timeout.
        """
        name, how = "", "is gone, and its variables are lost"
        with contextlib.closing(writer):
            try:
                message = json.loads(await reader.readline())
                name = message["name"]
                # A restarted parameter server has lost its variables, so it must wait for the next chief.
                if name in self._workers or (name in self._servers and name not in self._peers):
                    writer.write(GO)
                    if "heartbeat" in message:
                        self._arrived(name, writer)
                        while message := await asyncio.wait_for(reader.readline(), self._timeout):
                            if message == TOLD:
                                self._end_with(name)
            except asyncio.TimeoutError:  # in Python 3.10, not the built-in TimeoutError
                how = f"has been silent for {self._timeout:.0f} s"
            except (OSError, ValueError, LookupError, TypeError, RecursionError):  # reset, or an unknown client
                pass
        if self._peers.get(name) is writer:
            self._lost(name, how)

    def _arrived(self, name: str, writer: asyncio.StreamWriter) -> None:
        self._peers[name] = writer
        if self._all_here.is_set() and self._needed:
            # TensorFlow updates the whole cluster at a time, so it doesn't readmit workers while another is lost.
            absent = self._absent_workers()
            warn(
                f"{name} has returned"
                + f", but {absent}; returned workers don't receive work until all workers have returned" * bool(absent)
            )
        if self._peers.keys() == self._servers | self._workers:
            self._all_here.set()

    def _end_with(self, name: str) -> None:
        """Save a checkpoint and stop the run if it can't continue without the replica that was asked to stop."""
        is_server, workers = name in self._servers, self._workers & self._peers.keys()
        if self._needed and not self.told and (is_server or workers == {name}):
            self.told = name
            who = "a parameter server" if is_server else "the only connected worker"
            warn(f"{name}, {who}, was asked to stop, so the run stops")

    def _lost(self, name: str, how: str) -> None:
        if name in self._servers:
            self._stop(f"{name}, a parameter server, {how}", name)
            return
        del self._peers[name]
        if self._all_here.is_set() and self._needed:
            left = "the other workers take over its work until it returns"
            if not self._workers & self._peers.keys():
                left = f"no worker is left, so the run stops unless one returns within {self._timeout:.0f} s"
            warn(f"{name} is gone; {left}")

    def _absent_workers(self) -> str:
        """Return a phrase such as `workerpool1-0, workerpool1-2 are gone`.

        If all workers are connected, return an empty string.
        """
        absent = sorted(self._workers - self._peers.keys())
        return f"{', '.join(absent)} {'is' if len(absent) == 1 else 'are'} gone" if absent else ""

    def _stop(self, why: str, lost: str = "") -> None:
        if self._needed:
            self.need_nobody()
            self._fail(why, lost)


def answer(cluster: Cluster, timeout: float, told: threading.Event) -> None:
    """Respond to the chief's heartbeats until the chief has finished.

    Each response reports whether the `told` event is set, which means that this replica was asked to stop.

    Raises PeerError if the chief exits before the run has finished or if it doesn't respond for `timeout` seconds.
    """
    how = "exited before the training finished"
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
        except OSError:  # a reset connection also means that the chief exited
            pass
    raise PeerError(f"{cluster.chief.name}, the chief, {how}", lost_peer=cluster.chief.name)


def _connected(chief: Node, timeout: float) -> socket.socket:
    deadline = time.monotonic() + timeout
    while True:
        try:
            return socket.create_connection((chief.host, chief.port), timeout=5)
        except OSError:
            if time.monotonic() > deadline:
                raise PeerError(f"{chief.name}, the chief, isn't listening on {chief.address}") from None
            time.sleep(rollcall.RETRY_SECONDS)

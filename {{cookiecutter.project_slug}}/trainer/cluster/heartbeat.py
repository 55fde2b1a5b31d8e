"""Exchanges heartbeats between all training replicas, to identify lost or hanging replicas.

A training framework detects only that some peer doesn't respond. Therefore, each replica sends its name to every other
replica in UDP datagrams. The datagrams use the port number on which the framework listens for TCP connections. The
parent process of the training processes sends the heartbeats. This parent process only waits for the training
processes, so no other code holds its global interpreter lock. If no heartbeat ever arrives from a replica (for example,
because of a firewall), that replica is never reported as lost.

After a replica loses a peer, its heartbeats report the loss. If a replica that hasn't lost a peer receives this report,
its heartbeats report where in the code its own processes hang.

If the chief exits, Vertex AI stops the other replicas. Therefore, replicas can use heartbeats to exit together.
"""

import contextlib
import math
import signal
import socket
import threading
import time
from functools import cache
from typing import Any

from trainer.cluster import stuck
from trainer.cluster.rollcall import interface
from trainer.cluster.spec import Cluster, Node
from trainer.vertex.errors import PeerError

BEAT_SECONDS = 1.0
SILENT_SECONDS = 3.0  # without a heartbeat, after which a replica counts as silent
ANSWER_SECONDS = 10.0  # to wait until each peer that has sent heartbeats is silent or has news
LONGEST_MESSAGE = 500  # bytes
FINISH_SECONDS = 300.0  # to wait until the other replicas have finished
LOST, FINISHED = "lost", "finished"


class Heartbeat:
    """Heartbeats that one replica sends and receives until the process exits.

    Attributes:
        heard: the time of each peer's last heartbeat, measured with time.monotonic.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._name, self.heard = cluster.name, dict[str, float]()
        self._others = {node.name: node for node in cluster.nodes if cluster.trains and node.name != cluster.name}
        self._news, self._own, self._lost = dict[str, str](), "", threading.Event()
        with contextlib.suppress(OSError):  # if another program uses the port, this replica doesn't exchange heartbeats
            if self._others:
                self._socket = bound(cluster.nodes[cluster.rank])
                threading.Thread(target=self._send, daemon=True).start()
                threading.Thread(target=self._hear, daemon=True).start()
                threading.Thread(target=self._look, daemon=True).start()

    def loss(self) -> PeerError:
        """Wait until a peer is silent or all peers have reported a loss or a hang, and then return an error.

        If the lost peer is known, the error's text contains its name.
        """
        self._own, deadline = self._own or LOST, time.monotonic() + ANSWER_SECONDS
        while not (silent := self._silent()) and time.monotonic() < deadline:
            if all(self._news[name] for name in [*self.heard]):
                break
            time.sleep(BEAT_SECONDS / 10)
        if not silent:
            return self._stuck()
        name = max(silent, key=lambda name: silent[name])
        who, cure = name, ""
        # Peers that exited because of a lost peer sent heartbeats for longer than the lost peer.
        if 1 < len(silent) == len(self._others) and silent[name] - min(silent.values()) < SILENT_SECONDS / 2:
            who, cure = "any peer", "; this replica might be cut off from the network"
        said = f"{self._name} hasn't heard from {who} for {silent[name]:.0f} s{cure}"
        return PeerError(said, lost_peer="" if cure else name)

    def finish(self) -> None:
        """Report that this replica has finished, and wait until no other replica is running or until SIGTERM."""
        self._own, deadline = FINISHED, time.monotonic() + FINISH_SECONDS
        if self.heard:
            self._beat()
        while any(not self._news[name] for name in self.heard.keys() - self._silent()) and time.monotonic() < deadline:
            if signal.SIGTERM in signal.sigpending():
                break
            time.sleep(BEAT_SECONDS / 10)

    def _stuck(self) -> PeerError:
        """Return an error that names the hanging replica with the fewest finished steps.

        If several replicas qualify, or if no replica hangs, the error's text is empty.
        """
        hanging = sorted((news, name) for name, news in self._news.items() if news not in ("", LOST, FINISHED))
        least = [each for each in hanging if each[0][: stuck.WIDTH] == hanging[0][0][: stuck.WIDTH]]
        if len(least) != 1:
            return PeerError()
        name, place = least[0][1], least[0][0][stuck.WIDTH :]
        said = (
            f"{name} is stuck in {place}. The other replicas wait for this replica, whose log contains its Python stack"
        )
        return PeerError(said, stuck=name, place=place)

    def _silent(self) -> dict[str, float]:
        """Map each silent replica to the number of seconds since its last heartbeat."""
        now = time.monotonic()
        return {name: now - at for name, at in [*self.heard.items()] if now - at > SILENT_SECONDS}

    def _send(self) -> None:
        while True:
            self._beat()
            time.sleep(BEAT_SECONDS)

    def _beat(self) -> None:
        for node in self._others.values():
            with contextlib.suppress(OSError):  # the peer hasn't started yet, or has exited
                self._socket.sendto(f"{self._name}\n{self._own}".encode(), address(node, self._socket.family))

    def _hear(self) -> None:
        while True:
            with contextlib.suppress(OSError):
                name, _, news = self._socket.recv(LONGEST_MESSAGE).decode(errors="replace").partition("\n")
                if name in self._others:
                    # A peer with news may exit before other replicas lose a peer. Such a peer isn't the lost peer.
                    self._news[name], self.heard[name] = news, math.inf if news else time.monotonic()
                    if news not in ("", FINISHED):
                        self._lost.set()

    def _look(self) -> None:
        self._lost.wait()
        time.sleep(BEAT_SECONDS)  # by then, this replica's processes have lost the peer, too, unless they hang
        answer = stuck.ask(self._name)
        self._own = self._own or answer


def bound(node: Node) -> socket.socket:
    """Return a datagram socket that is bound to the replica's own port."""
    host, family = interface(node)
    bound = socket.socket(family, socket.SOCK_DGRAM)
    bound.bind((host, node.port))
    return bound


@cache
def address(node: Node, family: socket.AddressFamily) -> Any:
    """Return a replica's IP address and port.

    Resolve the hostname only once, because the name server might be slow after the replica has exited.
    """
    return socket.getaddrinfo(node.host, node.port, family, socket.SOCK_DGRAM)[0][4]

"""Heartbeats between all replicas that train: when a peer is lost, the one is named that fell silent, or that hangs.

A framework only knows that some peer does not answer. So each replica sends its name to every other one, as a datagram
to the port of its address, where the framework listens with TCP. Its first process does so, which waits for those that
train and has the lock of its Python to itself. Who has never been heard, as behind a firewall, is never named.

Its news travel with its name: that it has lost a peer or, once another one has, where its own processes hang.
"""

import contextlib
import math
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
SILENT_SECONDS = 3.0  # after which a replica counts as silent
ANSWER_SECONDS = 10.0  # within which each peer that was heard is silent or has news
LONGEST_MESSAGE = 500  # bytes
LOST = "lost"


class Heartbeat:
    """Sends heartbeats and hears those of the others, `heard` at times of time.monotonic, until the process ends."""

    def __init__(self, cluster: Cluster) -> None:
        self._name, self.heard = cluster.name, dict[str, float]()
        self._others = {node.name: node for node in cluster.nodes if cluster.trains and node.name != cluster.name}
        self._news, self._own, self._lost = dict[str, str](), "", threading.Event()
        with contextlib.suppress(OSError):  # somebody else has the port: this replica is neither heard nor named
            if self._others:
                self._socket = bound(cluster.nodes[cluster.rank])
                threading.Thread(target=self._send, daemon=True).start()
                threading.Thread(target=self._hear, daemon=True).start()
                threading.Thread(target=self._look, daemon=True).start()

    def loss(self) -> PeerError:
        """Wait until a peer is silent or all have news; returns an error that names the lost one, or nobody."""
        self._own, deadline = self._own or LOST, time.monotonic() + ANSWER_SECONDS
        while not (silent := self._silent()) and time.monotonic() < deadline:
            if all(self._news[name] for name in [*self.heard]):
                break
            time.sleep(BEAT_SECONDS / 10)
        if not silent:
            return self._stuck()
        name = max(silent, key=lambda name: silent[name])
        who, cure = name, ""
        # Peers that have ended because of another one were heard for longer than that one.
        if 1 < len(silent) == len(self._others) and silent[name] - min(silent.values()) < SILENT_SECONDS / 2:
            who, cure = "anybody", "; it may be cut off"
        said = f"{self._name} has heard nothing from {who} for {silent[name]:.0f} s{cure}"
        return PeerError(said, lost_peer="" if cure else name)

    def _stuck(self) -> PeerError:
        """Name the replica that hangs after the fewest steps; nobody if there is none, or several."""
        hanging = sorted((news, name) for name, news in self._news.items() if news not in ("", LOST))
        least = [each for each in hanging if each[0][: stuck.WIDTH] == hanging[0][0][: stuck.WIDTH]]
        if len(least) != 1:
            return PeerError()
        name, place = least[0][1], least[0][0][stuck.WIDTH :]
        said = f"{name} is stuck in {place}. The others wait for it; its log has its Python stack"
        return PeerError(said, stuck=name, place=place)

    def _silent(self) -> dict[str, float]:
        """Seconds for which each silent replica has been."""
        now = time.monotonic()
        return {name: now - at for name, at in [*self.heard.items()] if now - at > SILENT_SECONDS}

    def _send(self) -> None:
        while True:
            for node in self._others.values():
                with contextlib.suppress(OSError):  # it is not there yet, or no longer
                    self._socket.sendto(f"{self._name}\n{self._own}".encode(), address(node, self._socket.family))
            time.sleep(BEAT_SECONDS)

    def _hear(self) -> None:
        while True:
            with contextlib.suppress(OSError):
                name, _, news = self._socket.recv(LONGEST_MESSAGE).decode(errors="replace").partition("\n")
                if name in self._others:
                    # Who has news may end before others lose a peer, and is not the one that they have lost.
                    self._news[name], self.heard[name] = news, math.inf if news else time.monotonic()
                    if news:
                        self._lost.set()

    def _look(self) -> None:
        self._lost.wait()
        time.sleep(BEAT_SECONDS)  # in which this replica's processes lose the peer, too, unless they hang
        answer = stuck.ask(self._name)
        self._own = self._own or answer


def bound(node: Node) -> socket.socket:
    """Return a socket for datagrams at the replica's own port."""
    host, family = interface(node)
    bound = socket.socket(family, socket.SOCK_DGRAM)
    bound.bind((host, node.port))
    return bound


@cache
def address(node: Node, family: socket.AddressFamily) -> Any:
    """Resolve a replica's address, once: a name server may forget a replica that has ended, and take long to say so."""
    return socket.getaddrinfo(node.host, node.port, family, socket.SOCK_DGRAM)[0][4]

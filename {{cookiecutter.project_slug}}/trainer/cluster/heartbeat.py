"""Heartbeats between all replicas that train: when a peer is lost, the one that has been silent for longest is named.

A framework only knows that some peer does not answer. So each replica sends its name to every other one, as a datagram
to the port of its address, where the framework listens with TCP. Its first process does so, which waits for those that
train and has the lock of its Python to itself. Who has never been heard, as behind a firewall, is never named.
"""

import contextlib
import socket
import threading
import time
from functools import cache
from typing import Any

from trainer.cluster.rollcall import interface
from trainer.cluster.spec import Cluster, Node

BEAT_SECONDS = 1.0
SILENT_SECONDS = 3.0  # after which a replica counts as silent
LONGEST_NAME = 100  # bytes


class Heartbeat:
    """Sends heartbeats and hears those of the others, `heard` at times of time.monotonic, until the process ends."""

    def __init__(self, cluster: Cluster) -> None:
        self._name, self.heard = cluster.name, dict[str, float]()
        self._others = {node.name: node for node in cluster.nodes if cluster.trains and node.name != cluster.name}
        with contextlib.suppress(OSError):  # somebody else has the port: this replica is neither heard nor named
            if self._others:
                self._socket = bound(cluster.nodes[cluster.rank])
                threading.Thread(target=self._send, daemon=True).start()
                threading.Thread(target=self._hear, daemon=True).start()

    def loss(self) -> str:
        """Wait until a lost replica counts as silent; returns a sentence that names it, empty where none is silent."""
        deadline = time.monotonic() + SILENT_SECONDS
        while not (silent := self._silent()) and time.monotonic() < deadline + BEAT_SECONDS:
            time.sleep(BEAT_SECONDS / 10)
        if not silent:
            return ""
        name = max(silent, key=lambda name: silent[name])
        who, cure = name, ""
        # Peers that have ended because of another one were heard for longer than that one.
        if 1 < len(silent) == len(self._others) and silent[name] - min(silent.values()) < SILENT_SECONDS / 2:
            who, cure = "anybody", "; it may be cut off"
        return f"{self._name} has heard nothing from {who} for {silent[name]:.0f} s{cure}"

    def _silent(self) -> dict[str, float]:
        """Seconds for which each silent replica has been."""
        now = time.monotonic()
        return {name: now - at for name, at in [*self.heard.items()] if now - at > SILENT_SECONDS}

    def _send(self) -> None:
        while True:
            for node in self._others.values():
                with contextlib.suppress(OSError):  # it is not there yet, or no longer
                    self._socket.sendto(self._name.encode(), address(node, self._socket.family))
            time.sleep(BEAT_SECONDS)

    def _hear(self) -> None:
        while True:
            with contextlib.suppress(OSError):
                name = self._socket.recv(LONGEST_NAME).decode(errors="replace")
                if name in self._others:
                    self.heard[name] = time.monotonic()


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

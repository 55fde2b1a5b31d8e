"""Agrees on the processes that train together while replicas are lost and return.

The chief's first process runs a server at the chief's address (quorum_server.py). Each training process keeps a
connection to the server and asks at certain steps who trains. All processes ask at the same steps and receive the same
answer, a generation. The connection of a killed process closes immediately, so the others don't wait for a timeout.
"""

import contextlib
import json
import socket
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import Any

from trainer.cluster import rollcall
from trainer.cluster.spec import Cluster
from trainer.vertex.errors import PeerError, TrainerError
from trainer.vertex.log import say

BEAT_SECONDS = 0.5  # the interval between two signs of life, and between two attempts to connect
TELL_SECONDS = 5.0  # of waiting for the chief or for more replicas, after which a process says so
Message = dict[str, Any]


@dataclass(frozen=True)
class Limits:
    """The smallest number of replicas, and waiting times in seconds."""

    least: int
    patience: float  # for all replicas, after the chief has started
    timeout: float  # for a chief that restarts, or for enough replicas
    silence: float  # for a process that is connected but doesn't ask


@dataclass(frozen=True)
class Generation:
    """The processes that train together, with their ranks in the whole job, in ascending order.

    Args:
        number: the generation's number, which differs from all earlier numbers even if the chief has restarted.
        port: the chief's port of the store with which the processes create the process group.
        steps: the number of finished steps of each process that holds a complete training state.
        ask: the number of finished steps after which all processes ask again.
    """

    ranks: tuple[int, ...]
    number: int = 0
    port: int = 0
    steps: Mapping[int, int] = field(default_factory=dict)
    ask: int = 0

    @property
    def source(self) -> int | None:
        """The process whose training state the others receive, or None if there is no complete training state."""
        return max(self.steps, key=lambda rank: self.steps[rank], default=None)


class OverError(Exception):
    """The error of a process that waits for a chief that has finished."""


class Client:
    """The connection of one training process to the chief's server.

    Attributes:
        lost: an event that is set if a process of this generation, or the chief, was lost.

    Args:
        rank: the process's rank in the whole job.
        on_loss: a function that another thread calls after the loss.
        is_over: a function that returns whether the chief has finished, because then it isn't reachable.
    """

    def __init__(
        self,
        cluster: Cluster,
        rank: int,
        limits: Limits,
        facts: rollcall.Facts,
        on_loss: Callable[[], None],
        is_over: Callable[[], bool] = lambda: False,
    ) -> None:
        self.rank, self.lost = rank, threading.Event()
        self._chief, self._limits, self._facts = cluster.chief, limits, dict(facts)
        self._on_loss, self._is_over = on_loss, is_over
        self._socket, self._connected, self._sending = socket.socket(), False, threading.Lock()
        self._answers = SimpleQueue[Message]()
        threading.Thread(target=self._beat, daemon=True).start()

    def ask(self, step: int, *, broken: bool) -> Generation:
        """Return the generation that trains after `step` finished steps.

        Args:
            step: the number of finished steps. The value -1 means that this process has no complete training state.
            broken: True if this process has lost a peer.

        Raises:
            OverError: if the chief isn't reachable because it has finished.
            PeerError: if the chief isn't reachable, or if too few replicas are present, for --quorum-timeout.
            TrainerError: if this process's flags differ from the chief's.
        """
        since, patience = time.monotonic(), self._limits.timeout + (self._limits.patience if step < 0 else 0)
        fault, told = f"{self._chief.name}, the chief, isn't reachable at {self._chief.address}", False
        while (waited := time.monotonic() - since) < patience:
            with contextlib.suppress(OSError):
                facts = {} if self._connected else {"facts": self._facts}
                self._connect()
                self._send({"rank": self.rank, "step": step, "broken": broken, **facts})
                if answer := self._answers.get():
                    return self._read(answer)
            if self._is_over():
                raise OverError
            if waited > TELL_SECONDS and not told:
                told = True
                say(f"{fault}; waiting for it for up to {patience:.0f} s", "WARNING")
            time.sleep(BEAT_SECONDS)
        raise PeerError(f"{fault}; waited {waited:.0f} s (--quorum-timeout)")

    def leave(self) -> None:
        """Tell the server that this process has finished. Otherwise, the others would regard it as lost."""
        with contextlib.suppress(OSError):
            self._send({"rank": self.rank})

    def _read(self, answer: Message) -> Generation:
        if "fault" in answer:
            raise TrainerError(answer["fault"])
        if "few" in answer:
            least = f"--min-replicas is {self._limits.least}"
            raise PeerError(f"{answer['few']}, but {least}; waited {self._limits.timeout:.0f} s (--quorum-timeout)")
        return Generation(**answer | {"ranks": tuple(answer["ranks"]), "steps": dict(answer["steps"])})

    def _connect(self) -> None:
        if not self._connected:
            self._socket = socket.create_connection((self._chief.host, self._chief.port), timeout=self._limits.silence)
            self._answers, self._connected = SimpleQueue(), True
            threading.Thread(target=self._hear, args=(self._socket, self._answers), daemon=True).start()

    def _hear(self, connection: socket.socket, answers: "SimpleQueue[Message]") -> None:
        """Pass on the server's messages. After the connection is lost, pass on an empty message."""
        with contextlib.suppress(OSError, ValueError):
            for line in connection.makefile("rb"):
                message = json.loads(line)
                if "lost" in message:
                    self._note_loss()
                elif message:
                    self.lost.clear()
                    answers.put(message)
        self._note_loss()
        self._connected = False
        answers.put({})

    def _note_loss(self) -> None:
        self.lost.set()
        with contextlib.suppress(Exception):  # `ask` waits for the messages after this one
            self._on_loss()

    def _beat(self) -> None:
        while True:
            time.sleep(BEAT_SECONDS)
            with contextlib.suppress(OSError):
                self._send({})

    def _send(self, message: Message) -> None:
        with self._sending:
            self._socket.sendall(rollcall.line_of(message))

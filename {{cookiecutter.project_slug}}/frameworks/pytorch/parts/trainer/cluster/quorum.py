"""Agrees on the processes that train together while replicas are lost and return.

The chief's first process runs a server at the chief's address. Each training process keeps a connection to the server
and asks at certain steps who trains. All processes ask at the same steps and receive the same answer, a generation. The
connection of a killed process closes immediately, so the others don't wait for a timeout.
"""

import asyncio
import contextlib
import json
import math
import socket
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from queue import SimpleQueue
from typing import Any

from torch.distributed import TCPStore  # type: ignore[attr-defined] # public, but not exported

from trainer.cluster import rollcall
from trainer.cluster.spec import Cluster
from trainer.vertex.errors import PeerError, TrainerError
from trainer.vertex.log import say

BEAT_SECONDS = 0.5  # the interval between two signs of life, and between two attempts to connect
FROZEN_SECONDS = 5.0  # without a sign of life, after which a process counts as frozen if another one lost a peer
TELL_SECONDS = 5.0  # of waiting for the chief or for more replicas, after which a process says so
# After a loss, processes that are creating the process group wait for the lost one until the server closes the store.
CLOSE_SECONDS = 2.0  # by then, the others have heard of the loss, and don't try to connect to the store
ASK_SECONDS = 0.25  # the interval between two questions, which is also the longest time until a replica can join
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


@dataclass
class _Member:
    writer: asyncio.StreamWriter
    heard: float = 0.0
    question: Message = field(default_factory=dict)  # empty if it has been answered
    asked: float = 0.0


class OverError(Exception):
    """The error of a process that waits for a chief that has finished."""


class Server:
    """The server of the chief's first process, which runs in a thread until the process exits.

    Args:
        each: the number of processes per replica.
        facts: the chief's values that must be the same on all replicas.
    """

    def __init__(self, cluster: Cluster, each: int, limits: Limits, facts: rollcall.Facts) -> None:
        self._cluster, self._each, self._limits, self._facts = cluster, each, limits, facts
        self._members, self._last = dict[int, _Member](), Generation((), number=time.time_ns())
        self._store: TCPStore | None = None  # of the last generation
        self._lost = math.inf  # the time of that generation's first loss
        self._time, self._told = time.monotonic(), 0  # of the last answer; the awaited replicas that the log mentions
        listener = rollcall.listen(cluster.chief)
        threading.Thread(target=lambda: asyncio.run(self._serve(listener)), daemon=True).start()

    async def _serve(self, listener: socket.socket) -> None:
        await asyncio.start_server(self._meet, sock=listener, limit=rollcall.LONGEST_LINE)
        while True:
            await asyncio.sleep(BEAT_SECONDS)
            self._drop_silent()
            if time.monotonic() - self._lost > CLOSE_SECONDS:
                self._store = None
            self._tell(self._members, {})
            self._settle()

    async def _meet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Read a process's questions until its connection is closed. Empty messages are signs of life."""
        member, rank = _Member(writer), -1
        with contextlib.suppress(Exception):  # a message of another program closes only its own connection
            while (line := await reader.readline()) and not writer.is_closing():  # closed by `_remove`
                member.heard, message = time.monotonic(), json.loads(line)
                if "step" in message:
                    member.question, member.asked, rank = message, member.heard, message["rank"]
                    if self._members.get(rank, member) is not member:
                        self._remove(rank)  # the process has restarted, but its old connection looks alive
                    self._members[rank] = member
                    self._check(rank, message.get("facts", {}))
                    self._settle()
                elif message:  # the process has finished
                    self._members.pop(rank)
        if self._members.get(rank) is member:
            self._remove(rank)

    def _check(self, rank: int, facts: rollcall.Facts) -> None:
        name = self._cluster.nodes[rank // self._each].name
        if fault := "; ".join(rollcall.differences(self._cluster, self._facts, {name: facts})):
            self._tell([rank], {"fault": f"{fault}; use the same value on all replicas, or continue with --anyway"})

    def _remove(self, rank: int) -> None:
        self._members.pop(rank).writer.close()
        if rank in self._last.ranks:
            self._tell(self._members, {"lost": rank})
            self._lost = min(self._lost, time.monotonic())
        self._settle()

    def _drop_silent(self) -> None:
        """Disconnect processes that don't ask, although others in this generation have asked.

        Also disconnect frozen processes, because NCCL's collectives would wait for a frozen process forever.
        """
        now, asked = time.monotonic(), [one for rank, one in self._members.items() if rank in self._last.ranks]
        since = now - min((one.asked for one in asked if one.question), default=now)
        is_broken = any(one.question.get("broken") for one in asked)
        longest = FROZEN_SECONDS if is_broken else self._limits.silence
        waiting = [(rank, one) for rank, one in self._members.items() if not one.question]
        for rank, one in waiting:  # listed first, because removing one may answer the questions of others
            if since > self._limits.silence or now - one.heard > longest:
                self._remove(rank)

    def _settle(self) -> None:
        """Answer all questions if every connected process has asked and enough replicas are present."""
        asked = {rank: one.question for rank, one in sorted(self._members.items()) if one.question}
        if not asked or len(asked) < len(self._members):
            return
        first, waited = not self._last.ranks, time.monotonic() - min(self._members[rank].asked for rank in asked)
        counts = [sum(rank // self._each == node for rank in asked) for node in range(len(self._cluster.nodes))]
        ranks = tuple(rank for rank in asked if counts[rank // self._each] == self._each)  # of complete replicas
        least, limit = self._limits.least, self._limits.timeout + (self._limits.patience if first else 0)
        if first and waited < self._limits.patience:
            least, limit = len(counts), self._limits.patience
        present = f"{len(ranks) // self._each} of {len(counts)} replicas are present"
        if 0 in ranks and len(ranks) >= least * self._each:
            self._last, self._told = self._next(ranks, {rank: asked[rank] for rank in ranks}), 0
            self._tell(ranks, asdict(self._last) | {"steps": [*self._last.steps.items()]})
        elif waited > limit:
            self._tell(asked, {"few": present})
        elif waited > TELL_SECONDS and self._told != least:
            self._told = least
            awaited = f"{least} replicas" if 0 in ranks else self._cluster.chief.name
            say(f"{present}; waiting for {awaited} for up to {limit:.0f} s", "WARNING")

    def _next(self, ranks: tuple[int, ...], asked: Mapping[int, Message]) -> Generation:
        """Return the current generation, or a new one if a process was lost, has lost a peer, or joins."""
        last, before, self._time = self._last, self._time, time.monotonic()
        steps = {rank: question["step"] for rank, question in asked.items() if question["step"] >= 0}
        step = max(steps.values(), default=0)
        is_broken = self._lost < math.inf or any(question["broken"] for question in asked.values())
        if is_broken or ranks != last.ranks or len(steps) < len(ranks):
            host, self._lost = self._cluster.chief.host, math.inf
            self._store = TCPStore(host, 0, is_master=True, wait_for_workers=False)
            return Generation(ranks, last.number + 1, self._store.port, steps, step + 1)
        pace = (self._time - before) / max(step - max(last.steps.values(), default=0), 1)  # seconds per step
        return Generation(ranks, last.number, last.port, steps, step + max(int(ASK_SECONDS / pace), 1))

    def _tell(self, ranks: Iterable[int], message: Message) -> None:
        for member in [self._members[rank] for rank in ranks]:
            if message and "lost" not in message:
                member.question = {}
            member.writer.write(rollcall.line_of(message))


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

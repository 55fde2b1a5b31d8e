"""The server that decides which processes train together. It runs in a thread of the chief's first process."""

import asyncio
import contextlib
import json
import math
import socket
import threading
import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field

from torch.distributed import TCPStore  # type: ignore[attr-defined] # public, but not exported

from trainer.cluster import rollcall
from trainer.cluster.quorum import BEAT_SECONDS, TELL_SECONDS, Generation, Limits, Message
from trainer.cluster.spec import Cluster
from trainer.vertex.log import say

FROZEN_SECONDS = 5.0  # without a sign of life, after which a process counts as frozen if another one lost a peer
# After a loss, processes that are creating the process group wait for the lost one until the server closes the store.
CLOSE_SECONDS = 2.0  # by then, the others have connected; a process retries for seconds if the store is closed
ASK_SECONDS = 0.25  # the interval between two questions, which is also the longest time until a replica can join


@dataclass
class _Member:
    writer: asyncio.StreamWriter
    heard: float = 0.0
    question: Message = field(default_factory=dict)  # empty if it has been answered
    asked: float = 0.0


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

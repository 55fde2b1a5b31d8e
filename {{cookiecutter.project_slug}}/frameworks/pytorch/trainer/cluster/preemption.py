"""The notice to end: a replica is told by a signal, all replicas agree on one step, and the run ends when it is saved.

Vertex sends SIGTERM about 30 s before it takes a Spot machine away.
Source: Vertex AI documentation, "Use Spot VMs with training", mid 2026.
"""

import signal
import threading
import time

import torch
import torch.distributed as dist

from trainer.cluster.spec import Cluster
from trainer.cluster.world import World
from trainer.vertex.errors import PeerError

# How this replica's processes hear that it is to end: SIGTERM comes from the agent, too, where a neighbour has failed.
NOTICE = signal.SIGUSR1
GRACE_SECONDS = 30  # in which a checkpoint must be saved
ASK_SECONDS = 0.25  # between two questions; each takes 0.25 ms of the loop, which is 1 % of a step of 20 ms


class StoppedError(PeerError):
    """End of a run at a step that all replicas have saved, because one was told to end.

    Args:
        told: whether this replica was; its exit code is then that of SIGTERM.
        by: name of a replica that was.
    """

    def __init__(self, cluster: Cluster, step: int, *, told: bool, by: str) -> None:
        self.exit_code = 128 + signal.SIGTERM if told else PeerError.exit_code
        who = "it" if told else by
        said = f"{cluster.name}: saved step {step}, as {who} was told to end; the next start resumes there"
        super().__init__(said, saved=step, told_to_end=by)


class Told:
    """Whether a signal has told this process to end. Within the block it only takes note, and does not end at once."""

    def __init__(self, number: signal.Signals) -> None:
        self.told, self._number = False, number

    def __enter__(self) -> None:
        if threading.current_thread() is threading.main_thread():
            self._before = signal.signal(self._number, self._take_note)

    def __exit__(self, *_: object) -> None:
        if threading.current_thread() is threading.main_thread():
            signal.signal(self._number, self._before)

    def _take_note(self, *_: object) -> None:
        self.told = True


class LastMoment(Told):
    """Question of all processes to one another: was anyone told to end?

    An all-reduce asks beside the training, and the next question reads the answer. When that is comes from the
    answer, too, so all processes ask and hear at the same steps.
    """

    def __init__(self, cluster: Cluster, world: World) -> None:
        super().__init__(NOTICE)
        self._cluster, self._world, self._asked, self._time, self._next = cluster, world, 0, time.monotonic(), 0
        self._answer, self._work = torch.zeros(2, dtype=torch.float64), None

    def by(self, step: int) -> str:
        """Return the name of a replica that was told to end, empty while none was. Every process must call it."""
        if step < self._next:
            return ""
        told, seconds = self._hear()
        self._ask(step)
        if seconds > ASK_SECONDS:  # a short wait against such a step, and the grace time may not hold another one
            told, seconds = self._hear()
        self._next = step + max(int(ASK_SECONDS / seconds) if seconds else 1, 1)
        return self._cluster.node(int(told) - 1, self._world.size).name if told else ""

    def _ask(self, step: int) -> None:
        now, steps = time.monotonic(), step - self._asked
        self._answer[0] = self._world.rank + 1 if self.told else 0
        self._answer[1] = (now - self._time) / steps
        self._asked, self._time = step, now
        self._work = dist.all_reduce(self._answer, dist.ReduceOp.MAX, group=self._world.group, async_op=True)

    def _hear(self) -> list[float]:
        """Return 1 plus the rank of a process that was told, 0 for none, and the seconds of the slowest one's step."""
        if self._work:
            self._work.wait()
        answer: list[float] = self._answer.tolist()
        return answer

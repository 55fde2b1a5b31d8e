"""Handles preemption notices: all replicas agree on a step, save a checkpoint for it, and then stop.

Vertex AI sends SIGTERM about 30 seconds before it preempts a Spot VM.
Source: Vertex AI documentation, "Use Spot VMs with training", mid-2026.
"""

import signal
import threading
import time

import torch
import torch.distributed as dist

from trainer.cluster.spec import Cluster
from trainer.cluster.world import World
from trainer.vertex.errors import PeerError

NOTICE = signal.SIGTERM  # the signal that asks this replica's processes to stop
ASK_SECONDS = 0.25  # the interval between two checks; a check takes 0.25 ms, which is 1% of a step of 20 ms


class StoppedError(PeerError):
    """The error that stops a run after a replica was asked to stop and all replicas saved the same checkpoint.

    Args:
        told: True if this replica was asked to stop. In this case, the replica exits with code 143, as it does after
            SIGTERM.
        by: the name of a replica that was asked to stop.
    """

    def __init__(self, cluster: Cluster, step: int, *, told: bool, by: str) -> None:
        self.exit_code = 128 + signal.SIGTERM if told else PeerError.exit_code
        who = "this replica" if told else by
        said = (
            f"{cluster.name}: saved step {step}, because {who} was asked to stop;"
            " after a restart, training resumes from this step"
        )
        super().__init__(said, saved=step, asked_to_stop=by)


class Told:
    """A context manager that records whether a signal asked this process to stop.

    Inside the `with` block, the signal doesn't terminate the process.
    """

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
    """A periodic check of whether any process was asked to stop. All processes participate in each check.

    Each check starts an all-reduce in the background, and the next check reads its result. The result of a check also
    determines when the next check is due, so all processes check at the same steps.
    """

    def __init__(self, cluster: Cluster, world: World) -> None:
        super().__init__(NOTICE)
        self._cluster, self._world, self._asked, self._time, self._next = cluster, world, 0, time.monotonic(), 0
        self._answer, self._work = torch.zeros(2, dtype=torch.float64), None

    def by(self, step: int) -> str:
        """Return the name of a replica that was asked to stop. If no replica was asked to stop, return an empty string.

        Every process must call this method.
        """
        if step < self._next:
            return ""
        told, seconds = self._hear()
        self._ask(step)
        if seconds > ASK_SECONDS:  # wait, because the grace time may be too short for another such step
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
        """Return 1 plus the rank of a process that was asked to stop, along with the longest step time in seconds.

        If no process was asked to stop, the first return value is 0.
        """
        if self._work:
            self._work.wait()
        answer: list[float] = self._answer.tolist()
        return answer

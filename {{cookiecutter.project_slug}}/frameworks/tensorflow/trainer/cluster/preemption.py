"""Handles preemption notices: all replicas agree on a step, save a checkpoint for it, and then stop.

Vertex AI sends SIGTERM about 30 seconds before it preempts a Spot VM.
Source: Vertex AI documentation, "Use Spot VMs with training", mid-2026.
"""

import signal
import threading
import time

import tensorflow as tf

from trainer.cluster.spec import Cluster
from trainer.cluster.world import World
from trainer.vertex.errors import PeerError

NOTICE = signal.SIGTERM  # the signal that asks this replica to stop
GRACE_SECONDS = 30  # the time to save a checkpoint after a notice
ASK_SECONDS = 0.5  # the interval between two checks; a check takes 3 to 5 ms with two processes on a CPU, which is 1%


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
    """A periodic check of whether any machine was asked to stop. All machines participate in each check.

    The result of a check also determines when the next check is due, so all machines check at the same steps.

    Args:
        timeout: the number of seconds within which all machines must begin a check.
    """

    def __init__(self, cluster: Cluster, world: World, timeout: float) -> None:
        super().__init__(NOTICE)
        self._cluster, self._world, self._asked, self._time, self._next = cluster, world, 0, time.monotonic(), 0
        # One tf.function for the whole run. Outside a tf.function, TensorFlow keeps a record of each sum forever.
        self._total, self._timeout = tf.function(world.total), timeout

    def by(self, step: int) -> str:
        """Return the name of a replica that was asked to stop. If no replica was asked to stop, return an empty string.

        Every machine must call this method.
        """
        if self._world.size == 1:  # no other machine to ask; the chief of parameter servers doesn't wait for each step
            return self._world.told or self._cluster.name * self.told
        if step < self._next:
            return ""
        answers = self._world.gather([self.told, self._microseconds(step)], self._total, self._timeout)
        told, microseconds = zip(*answers, strict=True)
        self._next = step + max(int(ASK_SECONDS * 1e6 / max(microseconds)), 1)
        return self._cluster.nodes[told.index(1)].name if any(told) else ""

    def _microseconds(self, step: int) -> int:
        """Return the mean step time since the last check, in microseconds (at least 1)."""
        now, steps = time.monotonic(), step - self._asked
        each = (now - self._time) / steps
        self._asked, self._time = step, now
        return max(int(each * 1e6), 1)


def take_back_sigterm() -> None:
    """Restore this program's SIGTERM handler. TensorFlow replaces this handler when it joins a cluster.

    Source: TensorFlow 2.21, xla/tsl/distributed_runtime/preemption/preemption_notifier.h, SigtermNotifier.
    """
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, signal.getsignal(signal.SIGTERM))

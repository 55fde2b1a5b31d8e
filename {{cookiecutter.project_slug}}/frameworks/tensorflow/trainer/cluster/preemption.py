"""The notice to end: a replica is told by a signal, all replicas agree on one step, and the run ends when it is saved.

Vertex sends SIGTERM about 30 s before it takes a Spot machine away.
Source: Vertex AI documentation, "Use Spot VMs with training", mid 2026.
"""

import signal
import threading
import time

import tensorflow as tf

from trainer.cluster.spec import Cluster
from trainer.cluster.world import World
from trainer.vertex.errors import PeerError

NOTICE = signal.SIGTERM  # how this replica hears that it is to end
GRACE_SECONDS = 30  # in which a checkpoint must be saved
ASK_SECONDS = 0.5  # between two questions; each takes 3 to 5 ms of the loop, two processes on a CPU: 1 %


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
    """Question of all machines to one another: was anyone told to end?

    When the next one is comes from the answer, too, so all machines ask at the same steps.

    Args:
        timeout: seconds within which all machines must have asked, as in a step.
    """

    def __init__(self, cluster: Cluster, world: World, timeout: float) -> None:
        super().__init__(NOTICE)
        self._cluster, self._world, self._asked, self._time, self._next = cluster, world, 0, time.monotonic(), 0
        # One function for the whole run: TensorFlow keeps a record of each sum outside of one for ever.
        self._total, self._timeout = tf.function(world.total), timeout

    def by(self, step: int) -> str:
        """Return the name of a replica that was told to end, empty while none was. Every machine must call it."""
        if self._world.size == 1:  # nobody to ask; the chief of parameter servers does not wait for each step
            return self._world.told or self._cluster.name * self.told
        if step < self._next:
            return ""
        answers = self._world.gather([self.told, self._microseconds(step)], self._total, self._timeout)
        told, microseconds = zip(*answers, strict=True)
        self._next = step + max(int(ASK_SECONDS * 1e6 / max(microseconds)), 1)
        return self._cluster.nodes[told.index(1)].name if any(told) else ""

    def _microseconds(self, step: int) -> int:
        """Return how long each step since the last question took, at least 1."""
        now, steps = time.monotonic(), step - self._asked
        each = (now - self._time) / steps
        self._asked, self._time = step, now
        return max(int(each * 1e6), 1)


def take_back_sigterm() -> None:
    """Let SIGTERM end this process again: to join others, TensorFlow puts a handler in its place that only takes note.

    Source: TensorFlow 2.21, xla/tsl/distributed_runtime/preemption/preemption_notifier.h, SigtermNotifier.
    """
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, signal.getsignal(signal.SIGTERM))

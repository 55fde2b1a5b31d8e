"""The step at which all machines end, once one of them was told to."""

import time

import tensorflow as tf

from trainer.cluster.notice import Told
from trainer.cluster.processes import NOTICE
from trainer.cluster.spec import Cluster
from trainer.cluster.world import World

ASK_SECONDS = 0.5  # between two questions; each takes 3 to 5 ms of the loop, two processes on a CPU: 1 %


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

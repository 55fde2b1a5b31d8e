"""The step at which all machines end, once one of them was told to."""

import time

import tensorflow as tf

from trainer.cluster.notice import Told
from trainer.cluster.processes import NOTICE
from trainer.cluster.world import World

ASK_SECONDS = 0.5  # between two questions; each takes 3 to 5 ms of the loop, two processes on a CPU: 1 %


class LastMoment(Told):
    """Question of all machines to one another: was anyone told to end?

    When the next one is comes from the answer, too, so all machines ask at the same steps.

    Args:
        timeout: seconds within which all machines must have asked, as in a step.
    """

    def __init__(self, world: World, timeout: float) -> None:
        super().__init__(NOTICE)
        self._world, self._asked, self._time, self._next = world, 0, time.monotonic(), 0
        # One function for the whole run: TensorFlow keeps a record of each sum outside of one for ever.
        self._total, self._timeout = tf.function(world.total), timeout

    def rank(self, step: int) -> int | None:
        """Return the rank of a machine that was told to end, None while nobody was. Every machine must call it."""
        if self._world.size == 1:  # nobody to ask; the chief of parameter servers does not wait for each step
            return 0 if self.told or self._world.told else None
        if step < self._next:
            return None
        answers = self._world.gather([self.told, self._microseconds(step)], self._total, self._timeout)
        told, microseconds = zip(*answers, strict=True)
        self._next = step + max(int(ASK_SECONDS * 1e6 / max(microseconds)), 1)
        return told.index(1) if any(told) else None

    def _microseconds(self, step: int) -> int:
        """Return how long each step since the last question took, at least 1."""
        now, steps = time.monotonic(), step - self._asked
        each = (now - self._time) / steps
        self._asked, self._time = step, now
        return max(int(each * 1e6), 1)

"""What has happened in one attempt of a job: since all its replicas were last to start."""

import math
from dataclasses import dataclass, field
from itertools import takewhile

from vertex_launch.local.running.ended import Ended, likely_cause_first
from vertex_launch.local.running.outcome import Ending


@dataclass
class Attempt:
    """One attempt of a job; times are time.monotonic's."""

    failures: list[Ended] = field(default_factory=list)  # after the first, no replica starts any more
    left: list[Ended] = field(default_factory=list)  # training replicas that exited with 0 before the primary did
    told: int = 0  # so many of those are in the log
    returned: dict[str, Ended] = field(default_factory=dict)  # by name: the last end of each restarted replica
    succeeded: bool = False  # the primary did; the others may still end by themselves
    running: bool = False
    restart_at: float = math.inf  # of all replicas together
    settled: float = math.inf  # then the attempt ends, whoever still runs
    ending: Ending | None = None

    @property
    def over(self) -> bool:
        return self.ending is not None

    def to_tell(self, since: float) -> list[Ended]:
        """The replicas that left before this time, each once."""
        due = [] if self.succeeded else [*takewhile(lambda ended: ended.time < since, self.left[self.told :])]
        self.told += len(due)
        return due

    def forget(self) -> None:
        """All replicas start again together: no end before explains a failure after."""
        self.left.clear()
        self.returned.clear()
        self.told, self.restart_at = 0, math.inf

    @property
    def causes(self) -> tuple[Ended, ...]:
        """All ends that may explain the failure, the likely cause first; those of restarted replicas come last."""
        down = likely_cause_first((*self.left, *self.failures))
        names = {ended.replica.name for ended in down}
        return (*down, *(ended for name, ended in self.returned.items() if name not in names))

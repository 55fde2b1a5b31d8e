"""What has come of a job since all its replicas were last to start."""

import math
from dataclasses import dataclass, field

from vertex_launch.local.running.ended import Ended, likely_cause_first
from vertex_launch.local.running.restart_policy import Ending


@dataclass
class Attempt:
    """One attempt of a job; times are time.monotonic's."""

    failures: list[Ended] = field(default_factory=list)  # after which nothing starts any more
    left: dict[str, Ended] = field(default_factory=dict)  # by name, who trained and ended with 0 before the primary
    untold: list[Ended] = field(default_factory=list)  # of those, so far
    returned: dict[str, Ended] = field(default_factory=dict)  # by name, how those last ended that were started again
    succeeded: bool = False  # the primary has; the others may still end by themselves
    running: bool = False
    restart_at: float = math.inf  # of all replicas together
    settled: float = math.inf  # when nobody else is waited for
    over: bool = False
    ending: Ending | None = None  # none yet, or, if over, the job starts again

    def end(self, ending: Ending | None) -> None:
        self.over, self.ending = True, ending

    def leave(self, ended: Ended) -> None:
        self.left[ended.replica.name] = ended
        self.untold.append(ended)

    def to_tell(self, since: float) -> list[Ended]:
        """Who left before then, each once."""
        due = [ended for ended in self.untold if ended.time < since]
        self.untold = [ended for ended in self.untold if ended.time >= since]
        return due

    def restart(self) -> None:
        """All start again together: what came before is no cause of what comes."""
        self.left.clear()
        self.untold.clear()
        self.returned.clear()
        self.restart_at = math.inf

    @property
    def causes(self) -> tuple[Ended, ...]:
        """All ends that may have to do with the failure, the likely cause first; those of replicas that run last."""
        down = {ended.replica.name: ended for ended in (*self.left.values(), *self.failures)}
        returned = [ended for name, ended in self.returned.items() if name not in down]
        return (*likely_cause_first(down.values()), *returned)

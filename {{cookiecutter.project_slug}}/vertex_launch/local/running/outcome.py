"""How a job stands, and how it ended."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

from vertex_launch.local.running.ended import Ended


class Phase(Enum):
    """What a job that has not ended does."""

    PENDING = "waits for machines"
    RUNNING = "all replicas have started"


class Ending(Enum):
    """How a job, or one attempt of it, ended."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "was cancelled"
    TIMED_OUT = "ran longer than its timeout"
    PREEMPTED = "was preempted too often"
    STARTS_AGAIN = "starts again"  # of an attempt only


# As what the service reports an ending; the names are google.rpc.Code's.
STATUSES = {
    Ending.CANCELLED: "CANCELLED",
    Ending.TIMED_OUT: "DEADLINE_EXCEEDED",
    Ending.PREEMPTED: "RESOURCE_EXHAUSTED",
}


@dataclass(frozen=True)
class Outcome:
    """How the job ended."""

    failures: tuple[Ended, ...] = ()  # the likely cause first; none unless the job failed
    ending: Ending = Ending.SUCCEEDED
    restarts: int = 0  # of the first replica among the failures, in the last attempt
    retries: int = 0  # of the job
    timeout: float = math.inf  # of the job, in seconds

    @property
    def succeeded(self) -> bool:
        return self.ending is Ending.SUCCEEDED

    @property
    def status(self) -> str:
        """The name of the google.rpc.Code of a job that did not succeed."""
        return STATUSES.get(self.ending, "INVALID_ARGUMENT")

    @property
    def others(self) -> Iterator[str]:
        """The ends besides the first: `after that workerpool1-0 exited with code 75`."""
        for ended in self.failures[1:]:
            yield f"{'before' if ended.time < self.failures[0].time else 'after'} that {ended}"

    @property
    def message(self) -> str:
        """What happened, in the service's words and with the traceback; then everything else, a line each."""
        lines = [f"the job {self.ending.value}"]
        if self.failures:
            lines = [self.failures[0].verdict, *self.others]
            if not self.failures[0].code:  # it left the others; show what that did to one of them, too
                lines += [next(ended for ended in self.failures if ended.code).verdict]
        if self.ending is Ending.TIMED_OUT:
            lines[0] += f" of {self.timeout:g} s"
        if self.restarts:
            lines.append(f"{self.failures[0].replica.name} was restarted {_times(self.restarts)}")
        if self.retries:
            lines.append(f"the job was retried {_times(self.retries)}")
        return "\n".join(lines)


def _times(count: int) -> str:
    return f"{count} {'time' if count == 1 else 'times'}"

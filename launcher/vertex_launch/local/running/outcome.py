"""Defines a job's phases, the events of one attempt to run it, and its outcome."""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from itertools import takewhile
from typing import Literal

from vertex_launch.local.running.ended import Ended, likely_cause_first
from vertex_launch.local.running.lines import message

LINE = 200  # the maximum number of characters of a replica's last line in a message

Phase = Literal["PENDING", "RUNNING"]  # the job waits for machines; all replicas have started


class Ending(Enum):
    """The final state of a job, or of one attempt to run it."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "was canceled"
    TIMED_OUT = "ran longer than its timeout"
    PREEMPTED = "was preempted too many times. Run the job again, or don't use SPOT"
    STARTS_AGAIN = "is restarted"  # only an attempt ends like this


# Maps an ending to the google.rpc.Code that the service reports.
STATUSES = {
    Ending.CANCELLED: "CANCELLED",
    Ending.TIMED_OUT: "DEADLINE_EXCEEDED",
    Ending.PREEMPTED: "RESOURCE_EXHAUSTED",
}


@dataclass
class Attempt:
    """One attempt to run all replicas of a job. All times are from time.monotonic."""

    failures: list[Ended] = field(default_factory=list)  # after the first failure, no replica starts again
    left: list[Ended] = field(default_factory=list)  # training replicas that exited with code 0 before the primary
    logged: int = 0  # the number of replicas in `left` that were logged
    returned: dict[str, Ended] = field(default_factory=dict)  # replica name -> the last end before its restart
    primary: Ended | None = None  # the primary's exit with code 0; other replicas may still exit by themselves
    running: bool = False
    restart_at: float = math.inf  # when all replicas restart together
    settled: float = math.inf  # when the attempt ends, even if some replicas are still running
    ending: Ending | None = None

    def to_tell(self, since: float) -> list[Ended]:
        """Return the replicas that exited with code 0 before the time `since`.

        Omit replicas that an earlier call returned.
        """
        due = [] if self.primary else [*takewhile(lambda ended: ended.time < since, self.left[self.logged :])]
        self.logged += len(due)
        return due

    def forget(self) -> None:
        """Forget all replica exits.

        After a restart of all replicas, an earlier exit can't explain a later failure.
        """
        self.left.clear()
        self.returned.clear()
        self.logged, self.restart_at = 0, math.inf

    @property
    def causes(self) -> tuple[Ended, ...]:
        """All exits that can explain the failure, with the likely cause first and restarted replicas last."""
        down = likely_cause_first((*self.left, *self.failures))
        names = {ended.replica.name for ended in down}
        return (*down, *(ended for name, ended in self.returned.items() if name not in names))


@dataclass(frozen=True)
class Outcome:
    """The outcome of a job: its final state and the causes of a failure."""

    failures: tuple[Ended, ...] = ()  # the likely cause first; empty unless the job failed
    ending: Ending = Ending.SUCCEEDED
    restarts: int = 0  # how many times the first replica in `failures` was restarted in the last attempt
    retries: int = 0  # how many times the job was retried
    timeout: float = math.inf  # the job timeout in seconds
    notes: tuple[str, ...] = ()  # sentences for the end of the log, even if the job succeeded

    @property
    def succeeded(self) -> bool:
        return self.ending is Ending.SUCCEEDED

    @property
    def status(self) -> str:
        """The name of the google.rpc.Code that the service reports for an unsuccessful job."""
        return STATUSES.get(self.ending, "INVALID_ARGUMENT")

    @property
    def failed(self) -> tuple[Ended, ...]:
        """A tuple with the first replica that failed with a nonzero exit code.

        If the likely cause itself has a nonzero exit code, the tuple is empty.
        """
        causes = self.failures if self.failures and not self.failures[0].code else ()
        return next(((ended,) for ended in causes if ended.code), ())

    @property
    def others(self) -> Iterator[str]:
        """Sentences about all exits except the first. Example: `3 other replicas lost a connection`."""
        victims = [ended for ended in self.failures[1:] if ended.lost_a_peer]
        for ended in self.failures[1:]:
            if len(victims) < 2 or ended not in victims:
                yield f"{'Before' if ended.time < self.failures[0].time else 'After'} that, {ended}"
        if len(victims) > 1:
            yield f"{len(victims)} other replicas {victims[0].loss}"

    @property
    def message(self) -> str:
        """The likely cause in the service's wording, with a traceback.

        The message continues with one line for each additional fact.
        """
        lines = [f"the job {self.ending.value}"]
        if self.failures:
            lines = [self.failures[0].verdict, *self.others]
            lines += [ended.verdict for ended in self.failed]
        if self.ending is Ending.TIMED_OUT:
            lines[0] += f" of {self.timeout:g} s. To allow more time, increase scheduling.timeout"
        if self.restarts:
            lines.append(f"{self.failures[0].replica.name} was restarted {_times(self.restarts)}")
        if self.retries:
            lines.append(f"The job was retried {_times(self.retries)}")
        return "\n".join(lines)


def hidden(primary: Ended | None, running: Iterable[tuple[str, Sequence[str]]]) -> Iterator[str]:
    """Yield the problems that occurred even though the job succeeded.

    `running` yields the name and last lines of each running replica.
    """
    if primary and primary.raised:
        yield (
            f"{primary.replica.name} exited with code 0 after a traceback: {primary.raised}. If the exception ended the"
            " program, a shell hid its exit code. Begin the script with set -eo pipefail, and remove || true and &"
        )
    for name, lines in running if primary else ():
        said = f". Its last line: {message(lines[-1])[:LINE]}" if lines else ""
        yield (
            f"{name} was still running when the chief exited with code 0, so it was stopped. If the job needs this"
            f" replica, make the chief wait until it exits{said}"
        )


def _times(count: int) -> str:
    return f"{count} {'time' if count == 1 else 'times'}"

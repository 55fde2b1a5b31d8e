"""Phases of a job, the events of one attempt of it, and its end."""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from itertools import takewhile
from typing import Literal

from vertex_launch.local.running.ended import Ended, likely_cause_first
from vertex_launch.local.running.lines import message

LINE = 200  # characters of a last line

Phase = Literal["PENDING", "RUNNING"]  # it waits for machines; all of its replicas have started


class Ending(Enum):
    """The end of a job, or of one attempt of it."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "was cancelled"
    TIMED_OUT = "ran longer than its timeout"
    PREEMPTED = "was preempted too often"
    STARTS_AGAIN = "starts again"  # of an attempt only


# Ending -> the google.rpc.Code that the service reports.
STATUSES = {
    Ending.CANCELLED: "CANCELLED",
    Ending.TIMED_OUT: "DEADLINE_EXCEEDED",
    Ending.PREEMPTED: "RESOURCE_EXHAUSTED",
}


@dataclass
class Attempt:
    """One attempt of a job, since all its replicas were last to start; times are time.monotonic's."""

    failures: list[Ended] = field(default_factory=list)  # after the first, no replica starts any more
    left: list[Ended] = field(default_factory=list)  # training replicas that exited with 0 before the primary did
    logged: int = 0  # count of `left` that are in the log
    returned: dict[str, Ended] = field(default_factory=dict)  # by name: the last end of each restarted replica
    primary: Ended | None = None  # its end with 0; the others may still end by themselves
    running: bool = False
    restart_at: float = math.inf  # of all replicas together
    settled: float = math.inf  # when the attempt ends, even if replicas still run
    ending: Ending | None = None

    def to_tell(self, since: float) -> list[Ended]:
        """Return the replicas that left before this time, each once."""
        due = [] if self.primary else [*takewhile(lambda ended: ended.time < since, self.left[self.logged :])]
        self.logged += len(due)
        return due

    def forget(self) -> None:
        """Forget all ends: after a restart of all replicas, no earlier end explains a failure."""
        self.left.clear()
        self.returned.clear()
        self.logged, self.restart_at = 0, math.inf

    @property
    def causes(self) -> tuple[Ended, ...]:
        """All ends that may explain the failure, the likely cause first; those of restarted replicas come last."""
        down = likely_cause_first((*self.left, *self.failures))
        names = {ended.replica.name for ended in down}
        return (*down, *(ended for name, ended in self.returned.items() if name not in names))


@dataclass(frozen=True)
class Outcome:
    """The end of a job, and why."""

    failures: tuple[Ended, ...] = ()  # the likely cause first; none unless the job failed
    ending: Ending = Ending.SUCCEEDED
    restarts: int = 0  # of the first replica among the failures, in the last attempt
    retries: int = 0  # of the job
    timeout: float = math.inf  # of the job, in seconds
    notes: tuple[str, ...] = ()  # last lines, of a success as well

    @property
    def succeeded(self) -> bool:
        return self.ending is Ending.SUCCEEDED

    @property
    def status(self) -> str:
        """The name of the google.rpc.Code of a job that did not succeed."""
        return STATUSES.get(self.ending, "INVALID_ARGUMENT")

    @property
    def failed(self) -> tuple[Ended, ...]:
        """The first replica that failed, if the likely cause is one that did not: it left, or never came."""
        causes = self.failures if self.failures and not self.failures[0].code else ()
        return next(((ended,) for ended in causes if ended.code), ())

    @property
    def others(self) -> Iterator[str]:
        """The ends besides the first: `after that workerpool1-0 exited with code 75`, `3 others: connection lost`."""
        victims = [ended for ended in self.failures[1:] if ended.lost_a_peer]
        for ended in self.failures[1:]:
            if len(victims) < 2 or ended not in victims:
                yield f"{'before' if ended.time < self.failures[0].time else 'after'} that {ended}"
        if len(victims) > 1:
            yield f"{len(victims)} others: {victims[0].loss}"

    @property
    def message(self) -> str:
        """The cause, in the service's words and with the traceback; then everything else, a line each."""
        lines = [f"the job {self.ending.value}"]
        if self.failures:
            lines = [self.failures[0].verdict, *self.others]
            lines += [ended.verdict for ended in self.failed]
        if self.ending is Ending.TIMED_OUT:
            lines[0] += f" of {self.timeout:g} s"
        if self.restarts:
            lines.append(f"{self.failures[0].replica.name} was restarted {_times(self.restarts)}")
        if self.retries:
            lines.append(f"the job was retried {_times(self.retries)}")
        return "\n".join(lines)


def hidden(primary: Ended | None, running: Iterable[tuple[str, Sequence[str]]]) -> Iterator[str]:
    """Say what a success hides; `running` has the last lines of each replica that runs when the job ends."""
    if primary and primary.raised:
        yield (
            f"{primary.replica.name} exited with 0 after a traceback: {primary.raised}. If the exception ended the"
            " program, a shell hid its exit code: begin the script with set -eo pipefail, and remove || true and &"
        )
    for name, lines in running if primary else ():
        said = f". Its last line: {message(lines[-1])[:LINE]}" if lines else ""
        yield (
            f"{name} still ran when the chief had exited with 0, and was stopped. If the job needs it, have the chief"
            f" wait for it{said}"
        )


def _times(count: int) -> str:
    return f"{count} {'time' if count == 1 else 'times'}"

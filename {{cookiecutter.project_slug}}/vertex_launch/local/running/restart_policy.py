"""What an execution of a job is told, and what it tells: when to start again, and how the job ended."""

import math
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

from vertex_launch.local.running.ended import Ended

# Source of both: Vertex AI documentation, "Understand the custom training service", mid 2026.

# Documented: aborted or an invalid address, the whole job is tried again, not the replica alone.
CRASHES = tuple(code + number for code in (0, 128) for number in (signal.SIGABRT, signal.SIGSEGV))

# Documented: a "user code exception" is permanent and shuts the whole job down; any other non-zero exit is restarted.
# Measured in public issues: 1, as which an uncaught exception of Python ends, is permanent.
# Inferred: so are wrong usage (2, of argparse and click), and a command that cannot be run (126) or is not there (127).
# Inferred: all other codes are no exceptions and restart. So does 137, though the page lists a lack of memory among the
# permanent errors: from here it looks like any machine that was lost.
USER_CODES = (1, 2, 126, 127)


@dataclass(frozen=True, kw_only=True)
class Policy:
    """When to start again and when to give up; times in seconds. The defaults are a laptop's: fail at once."""

    replica_restarts: int = 0  # in place, for each replica and attempt of the job
    job_retries: int = 0  # of the whole job, after those and after a crash
    preemptions: int = 0  # of a machine, each of which starts the whole job again
    together: bool = False  # whether all replicas restart with one of them
    retry_user_errors: bool = False  # the other reading of the documentation: any non-zero exit is restarted
    timeout: float = math.inf  # from the first start on
    grace: float = 5  # between SIGTERM and SIGKILL
    provision: float = 0  # until the machines arrive, in each attempt of the job
    stagger: float = 0  # between the starts of two replicas

    def is_permanent(self, ended: Ended) -> bool:
        """Whether it would only end in the same way again."""
        return ended.code in USER_CODES and not self.retry_user_errors


class Phase(Enum):
    """What a job that has not ended does."""

    PENDING = "waits for machines"
    RUNNING = "all replicas have started"


class Ending(Enum):
    """How a job ended."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "was cancelled"
    TIMED_OUT = "ran longer than its timeout"
    PREEMPTED = "was preempted too often"


@dataclass(frozen=True)
class Outcome:
    """How the job ended: if it failed, `failures` in the order of likely cause, else none."""

    failures: tuple[Ended, ...] = ()
    ending: Ending = Ending.SUCCEEDED
    restarts: int = 0  # of the first replica among the failures, in the last attempt
    retries: int = 0  # of the job
    timeout: float = math.inf  # of the job, in seconds

    @property
    def succeeded(self) -> bool:
        return self.ending is Ending.SUCCEEDED

    @property
    def others(self) -> Iterator[str]:
        """The ends besides the first: `after that workerpool1-0 exited with code 75`."""
        for ended in self.failures[1:]:
            yield f"{'before' if ended.time < self.failures[0].time else 'after'} that {ended}"

    @property
    def message(self) -> str:
        """What happened, in the service's words, with the traceback; then all else, a line each."""
        lines = [f"the job {self.ending.value}"]
        if self.failures:
            lines = [self.failures[0].verdict, *self.others]
            if not self.failures[0].code:  # it left the others; what that did to them is worth knowing, too
                lines += [next(ended for ended in self.failures if ended.code).verdict]
        if self.ending is Ending.TIMED_OUT:
            lines[0] += f" of {self.timeout:g} s"
        if self.restarts:
            lines.append(f"{self.failures[0].replica.name} was restarted {_counted(self.restarts, 'time')}")
        if self.retries:
            lines.append(f"the job was retried {_counted(self.retries, 'time')}")
        return "\n".join(lines)


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"

"""What an execution of a job is told, and what it tells: when to start again, and how the job ended."""

import math
import signal
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from launch.emulator.running.process import Ended

# Aborted or an invalid address: the whole job is tried again, not the replica alone.
CRASHES = tuple(code + number for code in (0, 128) for number in (signal.SIGABRT, signal.SIGSEGV))


@dataclass(frozen=True, kw_only=True)
class Policy:
    """When to start again and when to give up; times in seconds. The defaults are a laptop's: fail at once."""

    replica_restarts: int = 0  # in place, for each replica and attempt of the job
    job_retries: int = 0  # of the whole job, after those and after a crash
    preemptions: int = 0  # of a machine, each of which starts the whole job again
    together: bool = False  # whether all replicas restart with one of them
    timeout: float = math.inf  # from the first start on
    grace: float = 5  # between SIGTERM and SIGKILL
    provision: float = 0  # until the machines arrive, in each attempt of the job
    stagger: float = 0  # between the starts of two replicas


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
    def message(self) -> str:
        """One sentence without its full stop."""
        what = str(self.failures[0]) if self.failures else f"the job {self.ending.value}"
        if self.ending is Ending.TIMED_OUT:
            what += f" of {self.timeout:g} s"
        if self.restarts:
            what += f" after {_counted(self.restarts, 'restart')}"
        return f"{what}; the job was retried {_counted(self.retries, 'time')}" if self.retries else what


def likely_cause_first(failures: Iterable[Ended]) -> tuple[Ended, ...]:
    """A signal is a likelier cause than the peers that it made fail."""
    return tuple(sorted(failures, key=lambda ended: not ended.signal_name))


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"

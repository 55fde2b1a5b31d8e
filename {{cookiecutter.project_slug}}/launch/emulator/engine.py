"""Runs the replicas of one job as processes of this machine, through restarts and faults, to the job's end.

The job succeeds when its primary, the one replica of pool 0, exits with 0; the others are then stopped.
Whatever happens to the launcher, no process is left behind.
Source: Vertex AI documentation, "Understand the custom training service", mid 2026.
"""

import contextlib
import math
import queue
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from launch.emulator.isolation import Isolation, isolation
from launch.emulator.process import Ended, Process, Show
from launch.replicas import Replica

PRIMARY = "workerpool0-0"

# Aborted or an invalid address: the whole job is tried again, not the replica alone.
CRASHES = tuple(code + number for code in (0, 128) for number in (signal.SIGABRT, signal.SIGSEGV))

# After a first failure others follow within moments; a signal among them is the likelier cause.
SETTLE_SECONDS = 1.5
LOOK_SECONDS = 0.2


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


@dataclass(frozen=True, kw_only=True)
class Policy:
    """When to start again and when to give up; times in seconds. The defaults are a laptop's: fail at once."""

    replica_restarts: int = 0  # in place, for each replica and attempt of the job
    job_retries: int = 0  # of the whole job, after those and after a crash
    preemptions: int = 0  # of a machine, each of which starts the whole job again
    together: bool = False  # whether all replicas restart with one of them
    timeout: float = math.inf  # from the first start on
    grace: float = 5  # between SIGTERM and SIGKILL
    stagger: float = 0  # between the starts of two replicas


@dataclass(frozen=True)
class Status:
    """What one replica does."""

    name: str
    state: str  # waiting, running, frozen or ended
    restarts: int
    code: int | None = None  # of its last exit


@dataclass(frozen=True)
class Outcome:
    """How the job ended: `failures` in the order of likely cause, empty on success."""

    failures: tuple[Ended, ...] = ()
    ending: Ending = Ending.SUCCEEDED
    restarts: int = 0  # of the first replica among the failures, in the last attempt
    retries: int = 0  # of the job

    @property
    def succeeded(self) -> bool:
        return self.ending is Ending.SUCCEEDED

    @property
    def message(self) -> str:
        """One sentence without its full stop."""
        what = str(self.failures[0]) if self.ending is Ending.FAILED else f"the job {self.ending.value}"
        if self.restarts:
            what += f" after {self.restarts} restarts"
        return f"{what}; the job was retried {self.retries} times" if self.retries else what


@dataclass(eq=False)
class _Slot:
    """One replica over all its starts."""

    replica: Replica
    due: float = 0  # when it is to start
    process: Process | None = None
    restarts: int = 0
    total_restarts: int = 0
    code: int | None = None
    done: bool = False
    postponed: float = 0  # seconds that its next start comes later
    thaw_at: float = math.inf
    kill_at: float = math.inf
    preempted: bool = False

    @property
    def waits(self) -> bool:
        return self.process is None and not self.done

    @property
    def status(self) -> Status:
        state = (
            "ended" if self.done else "waiting" if self.waits else "frozen" if self.thaw_at < math.inf else "running"
        )
        return Status(self.replica.name, state, self.total_restarts, self.code)


class _AgainError(Exception):
    """The whole job is to start again."""


class Execution:
    """One job in execution. `run` does everything; the other methods only tell it what to do, from any thread."""

    def __init__(
        self,
        replicas: Sequence[Replica],
        logs: Path,
        show: Show,
        policy: Policy,
        phase: Callable[[Phase], None] = lambda phase: None,
        isolated: Isolation | None = None,
    ) -> None:
        self._slots = {replica.name: _Slot(replica) for replica in replicas}
        self._logs = logs
        self._show = show
        self._policy = policy
        self._phase = phase
        self._isolation = isolation() if isolated is None else isolated
        self._events: queue.SimpleQueue[Callable[[], Outcome | None]] = queue.SimpleQueue()
        self._deadline = math.inf
        self._settled = math.inf
        self._failures: list[Ended] = []
        self._succeeded = False
        self._announced = False
        self._retries = 0
        self._preemptions = 0

    @property
    def statuses(self) -> tuple[Status, ...]:
        return tuple(slot.status for slot in self._slots.values())

    def run(self) -> Outcome:
        """Run the job to its end; returns when no process is left."""
        self._logs.mkdir(parents=True, exist_ok=True)
        try:
            while True:
                with contextlib.suppress(_AgainError):
                    return self._attempt()
                self._stop_all()
        finally:
            self._stop_all()

    def cancel(self) -> None:
        """End the job."""
        self._events.put(lambda: self._outcome(Ending.CANCELLED))

    def preempt(self, name: str) -> None:
        """Take a machine away: SIGTERM, the grace time, SIGKILL; then the whole job starts again."""
        self._order(name, self._preempt)

    def kill(self, name: str) -> None:
        """SIGKILL to one replica."""
        self._order(name, lambda slot: slot.process.kill() if slot.process else None)

    def freeze(self, name: str, seconds: float) -> None:
        """Stop everything in one replica for some seconds."""
        self._order(name, lambda slot: self._freeze(slot, seconds))

    def delay(self, name: str, seconds: float) -> None:
        """Let the next start of one replica come so much later."""
        self._order(name, lambda slot: self._delay(slot, seconds))

    def _order(self, name: str, act: Callable[[_Slot], None]) -> None:
        slot = self._slots[name]

        def event() -> None:
            act(slot)

        self._events.put(event)

    def _attempt(self) -> Outcome:
        """All replicas from their start until the job has ended or, by _AgainError, starts again."""
        self._phase(Phase.PENDING)
        now = time.monotonic()
        self._failures, self._succeeded, self._announced, self._settled = [], False, False, math.inf
        for index, slot in enumerate(self._slots.values()):
            slot.due, slot.done, slot.restarts = now + index * self._policy.stagger, False, 0
        while True:
            try:
                outcome = self._events.get(timeout=self._patience())()
            except queue.Empty:
                outcome = None
            outcome = outcome or self._look(time.monotonic())
            if outcome:
                return outcome

    def _patience(self) -> float:
        """Seconds until something is to be done."""
        times = [slot.due + slot.postponed for slot in self._slots.values() if slot.waits]
        next_time = min([*times, self._settled, self._deadline], default=math.inf)
        return min(max(next_time - time.monotonic(), 0), LOOK_SECONDS)

    def _look(self, now: float) -> Outcome | None:
        """Do what is due."""
        for slot in self._slots.values():
            if slot.waits and slot.due + slot.postponed <= now and self._settled == math.inf:
                self._start(slot, now)
            if slot.thaw_at <= now and slot.process:
                slot.thaw_at = math.inf
                slot.process.thaw()
            if slot.kill_at <= now and slot.process:
                slot.kill_at = math.inf
                slot.process.kill()
        if not self._announced and not any(slot.waits for slot in self._slots.values()):
            self._announced = True
            self._phase(Phase.RUNNING)
        if now >= self._deadline:
            return self._outcome(Ending.TIMED_OUT)
        over = all(slot.done for slot in self._slots.values())
        if self._succeeded and (over or now >= self._settled):
            return self._outcome(Ending.SUCCEEDED)
        if self._failures and (over or now >= self._settled):
            return self._fail()
        return None

    def _start(self, slot: _Slot, now: float) -> None:
        slot.postponed = 0
        slot.process = Process(slot.replica, self._logs, self._show, self._isolation, self._report)
        self._deadline = min(self._deadline, now + self._policy.timeout)

    def _report(self, process: Process, ended: Ended) -> None:
        self._events.put(lambda: self._ended(process, ended))

    def _ended(self, process: Process, ended: Ended) -> Outcome | None:
        slot = self._slots[ended.replica.name]
        if slot.process is not process:  # of an earlier attempt
            return None
        process.close()
        slot.process, slot.code, slot.thaw_at, slot.kill_at = None, ended.code, math.inf, math.inf
        slot.done = True
        if slot.preempted:
            return self._preempted(slot)
        if ended.code == 0 and ended.replica.name == PRIMARY and not self._failures:
            self._succeeded = True
            self._settled = time.monotonic() + self._policy.grace
        elif ended.code and not self._succeeded:
            self._failed(slot, ended)
        return None

    def _failed(self, slot: _Slot, ended: Ended) -> None:
        limit = self._policy.replica_restarts
        if self._failures or ended.code in CRASHES or slot.restarts >= limit:
            self._failures.append(ended)
            self._settled = min(self._settled, time.monotonic() + SETTLE_SECONDS)
            return
        again = "all replicas start again" if self._policy.together else "it starts again"
        self._show(slot.replica, f"{ended}; {again}, restart {slot.restarts + 1} of {limit}")
        if self._policy.together:
            self._stop_all()
        now = time.monotonic()
        for one in self._slots.values() if self._policy.together else (slot,):
            one.done, one.due = False, now
            one.total_restarts += 1
        slot.restarts += 1

    def _fail(self) -> Outcome:
        """The job has failed, unless it may be tried again."""
        if self._retries < self._policy.job_retries:
            self._retries += 1
            first = self._sorted_failures()[0]
            limit = self._policy.job_retries
            self._show(first.replica, f"{first}; the job starts again, retry {self._retries} of {limit}")
            raise _AgainError
        return self._outcome(Ending.FAILED)

    def _preempt(self, slot: _Slot) -> None:
        if slot.process:
            slot.preempted = True
            slot.kill_at = time.monotonic() + self._policy.grace
            slot.process.terminate()

    def _preempted(self, slot: _Slot) -> Outcome:
        slot.preempted = False
        if self._preemptions >= self._policy.preemptions:
            return self._outcome(Ending.PREEMPTED)
        self._preemptions += 1
        limit = self._policy.preemptions
        name = slot.replica.name
        self._show(slot.replica, f"{name} was preempted; the job starts again, restart {self._preemptions} of {limit}")
        raise _AgainError

    def _freeze(self, slot: _Slot, seconds: float) -> None:
        if slot.process:
            slot.process.freeze()
            slot.thaw_at = time.monotonic() + seconds

    def _delay(self, slot: _Slot, seconds: float) -> None:
        slot.postponed += seconds

    def _sorted_failures(self) -> list[Ended]:
        return sorted(self._failures, key=lambda ended: not ended.signal_name)

    def _outcome(self, ending: Ending) -> Outcome:
        failures = () if ending is Ending.SUCCEEDED else tuple(self._sorted_failures())
        restarts = self._slots[failures[0].replica.name].restarts if failures else 0
        return Outcome(failures, ending, restarts, self._retries)

    def _stop_all(self) -> None:
        """SIGTERM, grace, SIGKILL; returns when all are gone. Another Ctrl-C skips the grace."""
        running = [slot.process for slot in self._slots.values() if slot.process]
        try:
            for process in running:
                process.thaw()
                process.terminate()
            deadline = time.monotonic() + self._policy.grace
            while any(process.alive for process in running) and time.monotonic() < deadline:
                time.sleep(0.02)
        finally:
            for process in running:
                process.close()
            for slot in self._slots.values():
                slot.process = None


def run(
    replicas: Sequence[Replica], logs: Path, show: Show, policy: Policy, isolated: Isolation | None = None
) -> Outcome:
    """Run these replicas to the end of the job from the main thread, which Ctrl-C interrupts."""
    with signals_as_exceptions():
        return Execution(replicas, logs, show, policy, isolated=isolated).run()


@contextlib.contextmanager
def signals_as_exceptions() -> Iterator[None]:
    """SIGTERM and SIGHUP end the launcher as Ctrl-C does: through its `finally` clauses.

    SIGINT too: a launcher started in the background by a shell would otherwise ignore it for ever.
    """

    def interrupt(number: int, _: object) -> None:
        raise KeyboardInterrupt(signal.Signals(number).name)

    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, interrupt) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)

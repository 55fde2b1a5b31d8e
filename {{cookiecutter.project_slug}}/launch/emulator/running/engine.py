"""Runs the replicas of one job as processes of this machine, through restarts and faults, to the job's end.

The job succeeds when its primary, the one replica of pool 0, exits with 0; the others are then stopped.
Whatever happens to the launcher, no process is left behind.
Source: Vertex AI documentation, "Understand the custom training service", mid 2026.
"""

import contextlib
import math
import queue
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from launch.emulator.home import private
from launch.emulator.running.interrupts import signals_as_exceptions
from launch.emulator.running.isolation import Isolation, isolation
from launch.emulator.running.policy import CRASHES, Ending, Outcome, Phase, Policy, likely_cause_first
from launch.emulator.running.process import Ended, Process, Show, open_log, tell
from launch.emulator.running.slot import Slot, Status
from launch.replicas import Replica

PRIMARY = "workerpool0-0"

# After a first failure others follow within moments, and one of those may be the cause.
SETTLE_SECONDS = 1.5

# Where the system gives Ctrl-C to another thread (macOS), the main one has to look up to notice.
LOOK_SECONDS = 0.5


@dataclass
class _Attempt:
    """What has come of the job since all its replicas were last to start."""

    failures: list[Ended] = field(default_factory=list)
    succeeded: bool = False  # the primary has; the others may still end by themselves
    running: bool = False
    settled: float = math.inf  # when nobody else is waited for
    over: bool = False
    ending: Ending | None = None  # none yet, or, if over, the job starts again

    def end(self, ending: Ending | None) -> None:
        self.over, self.ending = True, ending


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
        told: Callable[[str], None] = lambda line: None,
    ) -> None:
        self._slots = {replica.name: Slot(replica) for replica in replicas}
        self._logs = logs
        self._show = show
        self._policy = policy
        self._phase = phase
        self._told = told
        self._isolation = isolation() if isolated is None else isolated
        self._events: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._attempt = _Attempt()
        self._deadline = math.inf
        self._retries = 0
        self._preemptions = 0

    @property
    def statuses(self) -> tuple[Status, ...]:
        return tuple(slot.status for slot in self._slots.values())

    def run(self) -> Outcome:
        """Run the job to its end; returns when no process is left."""
        private(self._logs)
        try:
            while (ending := self._try()) is None:
                self._stop_all()
            return self._outcome(ending)
        finally:
            self._stop_all()

    def cancel(self) -> None:
        """End the job."""
        self._events.put(lambda: self._attempt.end(Ending.CANCELLED))

    def preempt(self, name: str) -> None:
        """Take a machine away: SIGTERM, the grace time, SIGKILL; then the whole job starts again."""
        self._order(name, lambda slot: slot.preempt(time.monotonic() + self._policy.grace))

    def kill(self, name: str) -> None:
        """SIGKILL to one replica."""
        self._order(name, Slot.kill)

    def freeze(self, name: str, seconds: float) -> None:
        """Stop everything in one replica for some seconds."""
        self._order(name, lambda slot: slot.freeze(time.monotonic() + seconds))

    def delay(self, name: str, seconds: float) -> None:
        """Let the next start of one replica come so much later."""
        self._order(name, lambda slot: slot.delay(seconds))

    def _order(self, name: str, act: Callable[[Slot], None]) -> None:
        slot = self._slots[name]  # a KeyError is the caller's
        self._events.put(lambda: act(slot))

    def _try(self) -> Ending | None:
        """All replicas from their start to the end of the job; none, if it has to start again."""
        self._attempt = _Attempt()
        arrival = time.monotonic() + self._policy.provision
        for index, slot in enumerate(self._slots.values()):
            slot.due, slot.restarts = arrival + index * self._policy.stagger, 0
        self._phase(Phase.PENDING)
        while not self._attempt.over:
            self._wait()
            self._look(time.monotonic())
        return self._attempt.ending

    def _wait(self) -> None:
        """Until something is due; then, or before, take in all that has happened."""
        next_time = min([self._attempt.settled, self._deadline, *(slot.next_time for slot in self._slots.values())])
        patience = min(max(next_time - time.monotonic(), 0), LOOK_SECONDS)
        with contextlib.suppress(queue.Empty):
            self._events.get(timeout=patience)()
            while not self._attempt.over:
                self._events.get_nowait()()

    def _look(self, now: float) -> None:
        """Do what is due."""
        attempt, slots = self._attempt, self._slots.values()
        if attempt.over:
            return
        for slot in slots:
            slot.act(now)
            if slot.start_at <= now:
                self._start(slot, now)
        if not attempt.running and attempt.settled == math.inf and not any(slot.waits for slot in slots):
            attempt.running = True
            self._phase(Phase.RUNNING)
        if now >= self._deadline:
            attempt.end(Ending.TIMED_OUT)
        elif now >= attempt.settled or all(slot.ended for slot in slots):
            self._conclude()

    def _start(self, slot: Slot, now: float) -> None:
        slot.started(Process(slot.replica, self._logs, self._show, self._isolation, self._report))
        self._deadline = min(self._deadline, now + self._policy.timeout)

    def _report(self, process: Process, ended: Ended) -> None:
        self._events.put(lambda: self._ended(process, ended))

    def _ended(self, process: Process, ended: Ended) -> None:
        slot, attempt = self._slots[ended.replica.name], self._attempt
        if slot.process is not process:  # it was stopped meanwhile
            return
        process.close()
        preempted = slot.preempted
        slot.vacate()
        slot.code = ended.code
        if attempt.succeeded:
            return
        if preempted and not attempt.failures:
            self._preempted(slot)
        elif ended.code:
            self._failed(slot, ended)
        elif ended.replica.name == PRIMARY and not attempt.failures:
            attempt.succeeded = True
            self._settle(self._policy.grace)

    def _failed(self, slot: Slot, ended: Ended) -> None:
        """Start the replica again, or all, or let the attempt end."""
        limit = self._policy.replica_restarts
        if self._attempt.failures or ended.code in CRASHES or slot.restarts >= limit:
            self._attempt.failures.append(ended)
            self._settle(SETTLE_SECONDS)
            return
        slot.restarts += 1
        again = "all replicas start again" if self._policy.together else "it starts again"
        self._tell(slot, f"{ended}; {again}, restart {slot.restarts} of {limit}")
        if self._policy.together:
            self._stop_all()
        now = time.monotonic()
        for one in self._slots.values() if self._policy.together else (slot,):
            one.due = now
            one.total_restarts += 1

    def _preempted(self, slot: Slot) -> None:
        """Start the whole job again, unless that was done often enough."""
        limit = self._policy.preemptions
        if self._preemptions >= limit:
            self._attempt.end(Ending.PREEMPTED)
            return
        self._preemptions += 1
        name = slot.replica.name
        self._tell(slot, f"{name} was preempted; the job starts again, restart {self._preemptions} of {limit}")
        self._attempt.end(None)

    def _settle(self, seconds: float) -> None:
        """The attempt ends soon; nothing starts any more."""
        self._attempt.settled = min(self._attempt.settled, time.monotonic() + seconds)
        for slot in self._slots.values():
            slot.due = math.inf

    def _conclude(self) -> None:
        """The attempt has succeeded or failed; then the job may be tried again."""
        limit = self._policy.job_retries
        if not self._attempt.failures:
            self._attempt.end(Ending.SUCCEEDED)
        elif self._retries >= limit:
            self._attempt.end(Ending.FAILED)
        else:
            self._retries += 1
            first = likely_cause_first(self._attempt.failures)[0]
            slot = self._slots[first.replica.name]
            self._tell(slot, f"{first}; the job starts again, retry {self._retries} of {limit}")
            self._attempt.end(None)

    def _tell(self, slot: Slot, line: str) -> None:
        self._told(line)
        with open_log(self._logs, slot.replica) as log:
            tell(slot.replica, line, log, self._show)

    def _outcome(self, ending: Ending) -> Outcome:
        failures = likely_cause_first(self._attempt.failures) if ending is Ending.FAILED else ()
        restarts = self._slots[failures[0].replica.name].restarts if failures else 0
        return Outcome(failures, ending, restarts, self._retries, self._policy.timeout)

    def _stop_all(self) -> None:
        """SIGTERM, grace, SIGKILL; returns when all are gone. Another Ctrl-C skips the grace."""
        running = [slot.process for slot in self._slots.values() if slot.process]
        try:
            for process in running:
                process.thaw()
                process.terminate()
            deadline = time.monotonic() + self._policy.grace
            for process in running:
                process.wait(max(deadline - time.monotonic(), 0))
        finally:
            for process in running:
                process.let_go()
            for process in running:
                process.close()
            for slot in self._slots.values():
                slot.vacate()


def run(
    replicas: Sequence[Replica], logs: Path, show: Show, policy: Policy, isolated: Isolation | None = None
) -> Outcome:
    """Run these replicas to the end of the job from the main thread, which Ctrl-C interrupts."""
    with signals_as_exceptions():
        return Execution(replicas, logs, show, policy, isolated=isolated).run()

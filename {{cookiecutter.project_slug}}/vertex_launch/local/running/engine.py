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
from pathlib import Path

from vertex_launch.local.running.attempt import Attempt
from vertex_launch.local.running.ended import PEER_LOST, Ended
from vertex_launch.local.running.namespaces import Isolation, isolation
from vertex_launch.local.running.process import Process, Show, open_log, tell
from vertex_launch.local.running.replica_state import Slot, Status
from vertex_launch.local.running.restart_policy import CRASHES, Ending, Outcome, Phase, Policy
from vertex_launch.local.running.signals import signals_as_exceptions
from vertex_launch.replicas import Replica
from vertex_launch.state_dir import private

PRIMARY = "workerpool0-0"

# After a first failure others follow within moments, and one of those may be the cause.
SETTLE_SECONDS = 1.5

# Where the system gives Ctrl-C to another thread (macOS), the main one has to look up to notice.
LOOK_SECONDS = 0.5


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
        self._attempt = Attempt()
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
            while (ending := self._run_attempt()) is None:
                self._stop_all()
            return self._outcome(ending)
        finally:
            self._stop_all()

    def cancel(self) -> None:
        """End the job."""
        self._events.put(lambda: self._attempt.end(Ending.CANCELLED))

    def preempt(self, name: str) -> None:
        """Take a machine away: SIGTERM, the grace time, SIGKILL; then the whole job starts again."""
        self._enqueue(name, lambda slot: slot.preempt(time.monotonic() + self._policy.grace))

    def kill(self, name: str) -> None:
        """SIGKILL to one replica."""
        self._enqueue(name, Slot.kill)

    def freeze(self, name: str, seconds: float) -> None:
        """Stop everything in one replica for some seconds."""
        self._enqueue(name, lambda slot: slot.freeze(time.monotonic() + seconds))

    def delay(self, name: str, seconds: float) -> None:
        """Let the next start of one replica come so much later."""
        self._enqueue(name, lambda slot: slot.delay(seconds))

    def _enqueue(self, name: str, act: Callable[[Slot], None]) -> None:
        slot = self._slots[name]  # a KeyError is the caller's
        self._events.put(lambda: act(slot))

    def _run_attempt(self) -> Ending | None:
        """All replicas from their start to the end of the job; none, if it has to start again."""
        self._attempt = Attempt()
        arrival = time.monotonic() + self._policy.provision
        for index, slot in enumerate(self._slots.values()):
            slot.due, slot.restarts = arrival + index * self._policy.stagger, 0
        self._phase(Phase.PENDING)
        while not self._attempt.over:
            self._wait()
            self._run_due(time.monotonic())
        return self._attempt.ending

    def _wait(self) -> None:
        """Until something is due; then, or before, take in all that has happened."""
        attempt = self._attempt
        slot_times = (slot.next_time for slot in self._slots.values())
        next_time = min([attempt.settled, attempt.restart_at, self._deadline, *slot_times])
        patience = min(max(next_time - time.monotonic(), 0), LOOK_SECONDS)
        with contextlib.suppress(queue.Empty):
            self._events.get(timeout=patience)()
            while not attempt.over:
                self._events.get_nowait()()

    def _run_due(self, now: float) -> None:
        """Do what is due."""
        attempt, slots = self._attempt, self._slots.values()
        if attempt.over:
            return
        if attempt.restart_at <= now:
            self._restart_all()
        for ended in attempt.to_tell(now - SETTLE_SECONDS):  # by then it is not all that end, one by one
            self._log(self._slots[ended.replica.name], str(ended))
        for slot in slots:
            slot.act(now)
            if slot.start_at <= now:
                self._start(slot, now)
        if not attempt.running and attempt.settled == math.inf and not any(slot.waits for slot in slots):
            attempt.running = True
            self._phase(Phase.RUNNING)
        if now >= self._deadline:
            attempt.end(Ending.TIMED_OUT)
        elif now >= attempt.settled or (attempt.restart_at == math.inf and all(slot.ended for slot in slots)):
            self._conclude()

    def _start(self, slot: Slot, now: float) -> None:
        self._attempt.left.pop(slot.replica.name, None)
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
        elif ended.replica.name == PRIMARY:
            self._succeeded()
        elif ended.replica.trains:
            attempt.leave(ended)

    def _succeeded(self) -> None:
        if not self._attempt.failures:
            self._attempt.succeeded = True
            self._attempt.untold.clear()
            self._settle(self._policy.grace)

    def _failed(self, slot: Slot, ended: Ended) -> None:
        """Start the replica again, or all, or let the attempt end."""
        attempt, limit = self._attempt, self._policy.replica_restarts
        taken = [one.replica.name for one in self._slots.values() if one.preempted]
        final = ended.code in CRASHES or self._policy.is_permanent(ended) or slot.restarts >= limit
        if taken and not attempt.failures:  # it need not have failed by itself, and starts again with the job
            self._log(slot, f"{ended} while {taken[0]} was being preempted")
        elif attempt.failures or final:
            attempt.failures.append(ended)
            self._settle(SETTLE_SECONDS)
        else:
            self._restart(slot, ended)

    def _restart(self, slot: Slot, ended: Ended) -> None:
        slot.restarts += 1
        limit, now = self._policy.replica_restarts, time.monotonic()
        again = "all replicas start again" if self._policy.together else "it starts again"
        self._log(slot, f"{ended}; {again}, restart {slot.restarts} of {limit}")
        if not self._policy.together:
            self._attempt.returned[slot.replica.name] = ended
            slot.due = now
            slot.total_restarts += 1
        elif ended.code == PEER_LOST:  # the peer may be about to tell why
            self._attempt.restart_at = min(self._attempt.restart_at, now + SETTLE_SECONDS)
        else:
            self._restart_all()

    def _restart_all(self) -> None:
        self._attempt.restart()
        self._stop_all()
        now = time.monotonic()
        for slot in self._slots.values():
            slot.due = now
            slot.total_restarts += 1

    def _preempted(self, slot: Slot) -> None:
        """Start the whole job again, unless that was done often enough."""
        limit = self._policy.preemptions
        if self._preemptions >= limit:
            self._attempt.end(Ending.PREEMPTED)
            return
        self._preemptions += 1
        name = slot.replica.name
        self._log(slot, f"{name} was preempted; the job starts again, restart {self._preemptions} of {limit}")
        self._attempt.end(None)

    def _settle(self, seconds: float) -> None:
        """The attempt ends soon; nothing starts any more."""
        self._attempt.settled = min(self._attempt.settled, time.monotonic() + seconds)
        self._attempt.restart_at = math.inf
        for slot in self._slots.values():
            slot.due = math.inf

    def _conclude(self) -> None:
        """The attempt has succeeded or failed; then the job may be tried again."""
        attempt, limit = self._attempt, self._policy.job_retries
        if not attempt.failures:
            attempt.end(Ending.SUCCEEDED)
            return
        first = attempt.causes[0]
        permanent = [ended for ended in attempt.failures if self._policy.is_permanent(ended)]
        if permanent and not (first.hard or first.code in CRASHES):  # else they lost that one, and it may come back
            if limit:
                slot = self._slots[permanent[0].replica.name]
                self._log(slot, f"{permanent[0]}, a user's error: the job ends without a retry")
            attempt.end(Ending.FAILED)
        elif self._retries >= limit:
            attempt.end(Ending.FAILED)
        else:
            self._retries += 1
            slot = self._slots[first.replica.name]
            self._log(slot, f"{first}; the job starts again, retry {self._retries} of {limit}")
            attempt.end(None)

    def _log(self, slot: Slot, line: str) -> None:
        self._told(line)
        with open_log(self._logs, slot.replica) as log:
            tell(slot.replica, line, log, self._show)

    def _outcome(self, ending: Ending) -> Outcome:
        failures = self._attempt.causes if ending is Ending.FAILED else ()
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

"""Runs the replicas of one job as processes, through restarts and faults, to the end of the job.

The job succeeds when its primary, the one replica of pool 0, exits with 0; the others are then stopped.
No process outlives the launcher, however it ends.
Source: Vertex AI documentation, "Understand the custom training service", mid 2026.
"""

import contextlib
import math
import queue
import time
from collections.abc import Callable, Iterator, Sequence
from signal import SIGCONT, SIGTERM

from vertex_launch.job.contract import Replica
from vertex_launch.job.spec import CHIEF_REPLICA, REDUCERS, WORKERS
from vertex_launch.job.state_dir import private
from vertex_launch.local.running import events, shared_folders
from vertex_launch.local.running.ended import PEER_LOST, Ended
from vertex_launch.local.running.faults import Action, step_of
from vertex_launch.local.running.outcome import Attempt, Ending, Outcome, Phase, hidden
from vertex_launch.local.running.prepare import PreparedJob
from vertex_launch.local.running.process import NOTES, Process, Show, open_log, tell
from vertex_launch.local.running.replica_state import ReplicaState, Status
from vertex_launch.local.running.signals import signals_as_exceptions
from vertex_launch.local.running.silence import Silence, activities
from vertex_launch.local.running.worlds import Worlds

SETTLE_SECONDS = 1.5  # from the first failure to the verdict: others fail meanwhile, and one may be the cause
PEER_SECONDS = 5.0  # instead, if the first replica has lost a peer: the peer is the likelier cause, and may end late
LATE_SECONDS = 1.0  # by which a replica starts late enough for others to fail for want of it
LOOK_SECONDS = 0.5  # macOS may deliver Ctrl-C to another thread; the main thread sees it only between waits


class Execution:
    """One job in execution. `run` does everything; the other methods, for any thread, tell it what to do."""

    def __init__(
        self,
        job: PreparedJob,
        show: Show,
        phase: Callable[[Phase], None] = lambda phase: None,
        progress: Callable[[str], None] = lambda line: None,
    ) -> None:
        self._job = job
        self._policy = job.policy
        self._states = {replica.name: ReplicaState(replica) for replica in job.replicas}
        self._show = show
        self._phase = phase
        self._progress = progress
        self._events: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._attempt = Attempt()
        self._deadline = math.inf
        self._retries = 0
        self._preemptions = 0
        self._starts = 0  # of replicas
        self._began = time.time()
        self._silence, self._worlds = Silence(), Worlds(job.addresses)
        self._heard = time.monotonic()  # when a replica has printed a line or started, whether it still runs or not
        self._faults = [*job.faults]  # that have not happened
        self._step = 0  # the newest that a replica has printed

    @property
    def statuses(self) -> tuple[Status, ...]:
        return tuple(state.status for state in self._states.values())

    def run(self) -> Outcome:
        """Run the job to its end; returns when no process is left."""
        private(self._job.logs)
        try:
            while (ending := self._run_attempt()) is Ending.STARTS_AGAIN:
                self._stop_all()
            for fault in self._faults:
                self._log(self._states[fault.replica].replica, f"fault: {fault}: the job ended before that")
            return self._outcome(ending)
        finally:
            self._stop_all()

    def cancel(self) -> None:
        self._events.put(lambda: self._end(Ending.CANCELLED))

    def disturb(self, action: Action, name: str, number: float = 0) -> None:
        """Do to a replica what happens to machines; after a preemption the whole job starts again."""
        state = self._states[name]  # a KeyError is the caller's
        self._events.put(lambda: self._disturb(state, action, number))

    def _disturb(self, state: ReplicaState, action: Action, number: float) -> None:
        state.disturb(action, self._policy.grace if action == "preempt" else number)

    def open_shell(self, name: str, terminal: str) -> bool:
        """Start a shell at a terminal, in this replica; returns whether the replica runs."""
        process = self._states[name].process
        if process:
            process.open_shell(terminal)
        return process is not None

    def _run_attempt(self) -> Ending:
        """Run all replicas from their start to the end of the attempt."""
        attempt = self._attempt = Attempt()
        arrival = time.monotonic() + self._policy.provision
        for index, state in enumerate(self._states.values()):
            state.due, state.restarts = arrival + index * self._policy.stagger, 0
        self._phase("PENDING")
        while attempt.ending is None:
            self._wait()
            self._run_due(time.monotonic())
        return attempt.ending

    def _end(self, ending: Ending) -> None:
        self._attempt.ending = ending

    def _wait(self) -> None:
        """Wait until something happens or is due; then take in everything that has happened."""
        attempt = self._attempt
        times = (state.next_time for state in self._states.values())
        next_time = min(attempt.settled, attempt.restart_at, self._deadline, self._worlds.due, *times)
        patience = min(max(next_time - time.monotonic(), 0), LOOK_SECONDS)
        with contextlib.suppress(queue.Empty):
            self._events.get(timeout=patience)()
            while not attempt.ending:
                self._events.get_nowait()()

    def _run_due(self, now: float) -> None:
        attempt, states = self._attempt, self._states.values()
        if attempt.ending:
            return
        if attempt.restart_at <= now:
            self._restart_all()
        for ended in attempt.to_tell(now - SETTLE_SECONDS):  # else all replicas are ending, one by one
            self._log(ended.replica, str(ended))
        self._cause_faults(now)
        for state in states:
            state.act(now)
            if state.start_at <= now:
                self._start(state)
                self._deadline = min(self._deadline, now + self._policy.timeout)
        self._look_for_silence(now)
        if self._worlds.due <= now:
            self._worlds.look(self._numbers())
        if not attempt.running and attempt.settled == math.inf and all(state.due == math.inf for state in states):
            attempt.running = True
            self._phase("RUNNING")
        if now >= self._deadline:
            self._end(Ending.TIMED_OUT)
        elif now >= attempt.settled or (attempt.restart_at == math.inf and all(state.ended for state in states)):
            self._conclude()

    def _start(self, state: ReplicaState) -> None:
        def report(process: Process, ended: Ended) -> None:
            self._events.put(lambda: self._ended(process, ended))

        self._starts += 1
        state.process = Process(state.replica, self._job.logs, self._read, self._job.isolation, report)
        self._worlds, self._heard = Worlds(self._job.addresses), time.monotonic()
        state.due, state.postponed, state.began = math.inf, 0, min(state.began, self._heard)

    def _read(self, replica: Replica, line: str, severity: str) -> None:
        """Show a line of a replica, in its own thread, and look for the step that a fault waits for."""
        self._heard = time.monotonic()
        self._show(replica, line, severity)
        if self._faults and (step := step_of(line)):
            self._events.put(lambda: self._reach(step))

    def _reach(self, step: int) -> None:
        self._step = max(self._step, step)

    def _cause_faults(self, now: float) -> None:
        """Let the faults happen whose moment has come, each once."""
        for fault in [*self._faults]:
            state = self._states[fault.replica]
            if state.is_due(fault, self._step, now):
                self._faults.remove(fault)
                self._disturb(state, fault.action, fault.number)
                self._log(state.replica, f"fault: {fault}")

    def _ended(self, process: Process, ended: Ended) -> None:
        state, attempt = self._states[ended.replica.name], self._attempt
        if state.process is not process:  # this process was stopped, and another may run in its place
            return
        process.close()
        preempted = state.preempted
        state.vacate()
        state.code = ended.code
        if attempt.primary:
            return
        if preempted and not attempt.failures:
            self._preempted(ended)
        elif ended.code:
            self._failed(state, ended)
        elif ended.replica.name == CHIEF_REPLICA:
            if not attempt.failures:
                attempt.primary = ended
                self._settle(self._policy.grace)
        elif ended.replica.trains:
            attempt.left.append(ended)

    def _failed(self, state: ReplicaState, ended: Ended) -> None:
        """Restart the replica, or all of them, or let the attempt end."""
        attempt = self._attempt
        preempted = [peer.replica.name for peer in self._states.values() if peer.preempted]
        if preempted and not attempt.failures:  # the preemption may be the cause; the whole job starts again anyway
            self._log(ended.replica, f"{ended} while {preempted[0]} was being preempted")
        elif not attempt.failures and self._policy.restarts_replica(ended, state.restarts):
            self._restart(state, ended)
        else:
            attempt.failures.append(ended)
            self._settle(PEER_SECONDS if ended.code == PEER_LOST else SETTLE_SECONDS)

    def _restart(self, state: ReplicaState, ended: Ended) -> None:
        state.restarts += 1
        restart = "all replicas start again" if self._policy.together else "it starts again"
        self._log(ended.replica, f"{ended}; {restart}, restart {state.restarts} of {self._policy.replica_restarts}")
        if not self._policy.together:
            self._attempt.returned[state.replica.name] = ended
            state.start_again()
        elif ended.code == PEER_LOST:  # the peer may be about to tell why
            self._attempt.restart_at = min(self._attempt.restart_at, time.monotonic() + SETTLE_SECONDS)
        else:
            self._restart_all()

    def _restart_all(self) -> None:
        self._attempt.forget()
        self._stop_all()
        for state in self._states.values():
            state.start_again()

    def _preempted(self, ended: Ended) -> None:
        """Start the whole job again, unless it was preempted too often."""
        limit = self._policy.preemptions
        if self._preemptions >= limit:
            self._end(Ending.PREEMPTED)
        else:
            self._preemptions += 1
            count = f"{self._preemptions} of {limit}"
            self._log(ended.replica, f"{ended.replica.name} was preempted; the job starts again, restart {count}")
            self._end(Ending.STARTS_AGAIN)

    def _settle(self, seconds: float) -> None:
        """Let the attempt end soon; no replica starts any more."""
        self._attempt.settled = min(self._attempt.settled, time.monotonic() + seconds)
        self._attempt.restart_at = math.inf
        for state in self._states.values():
            state.due = math.inf

    def _conclude(self) -> None:
        """End the attempt as a success or a failure; after a failure the job may start again."""
        attempt, limit = self._attempt, self._policy.job_retries
        if not attempt.failures:
            self._end(Ending.SUCCEEDED)
            return
        cause = attempt.causes[0]
        user_error = self._policy.user_error(attempt.failures, cause)
        if user_error and limit:
            self._log(user_error.replica, f"{user_error}, a user's error: the job ends without a retry")
        if user_error or self._retries >= limit:
            self._end(Ending.FAILED)
        else:
            self._retries += 1
            self._log(cause.replica, f"{cause}; the job starts again, retry {self._retries} of {limit}")
            self._end(Ending.STARTS_AGAIN)

    def _look_for_silence(self, now: float) -> None:
        """Say who may wait for whom when no replica has printed a line for long."""
        silent = now - self._heard if any(state.process for state in self._states.values()) else 0
        if sentence := self._silence.look(silent, self._numbers()):
            self._log(self._job.replicas[0], sentence)

    def _log(self, replica: Replica, line: str) -> None:
        """Log a line about a replica behind the replica's own lines."""
        self._progress(line)
        with open_log(self._job.logs, replica) as log:
            tell(replica, line, log, self._show)

    def _outcome(self, ending: Ending) -> Outcome:
        failures = self._attempt.causes if ending is Ending.FAILED else ()
        if failures:
            failures = (*self._absent(), *(self._silent(failures) if failures[0].lost_a_peer else ()), *failures)
        restarts = self._states[failures[0].replica.name].restarts if failures else 0
        primary = self._attempt.primary if ending is Ending.SUCCEEDED else None
        notes = (*self._worlds.notes(self._numbers(), bool(primary)), *hidden(primary, self._running()), *self._files())
        return Outcome(failures, ending, restarts, self._retries, self._policy.timeout, notes)

    def _running(self) -> Iterator[tuple[str, Sequence[str]]]:
        """Yield the last lines of each replica that runs, but not of those that never end by themselves."""
        served = any(state.replica.pool == REDUCERS for state in self._states.values())  # by parameter servers
        for state in self._states.values():
            if state.process and not (served and state.replica.pool in (WORKERS, REDUCERS)):
                yield state.replica.name, state.process.tail.lines

    def _absent(self) -> Iterator[Ended]:
        """Yield the replicas that never started, for which others may have waited; not those due in a moment."""
        for state in self._states.values():
            late = state.postponed + self._policy.stagger >= LATE_SECONDS
            if late and state.began == math.inf and state.replica.trains:
                yield Ended(state.replica, 0, instead="has not started yet")

    def _files(self) -> tuple[str, ...]:
        """Return what replicas have noted on their files, each sentence once."""
        notes, isolated = list[str](), self._job.isolation
        with contextlib.suppress(FileNotFoundError):
            notes += (self._job.logs / NOTES).read_text(errors="replace").splitlines()
        if isolated.state and not isolated.mounts and self._starts > 1:
            notes.append(shared_folders.note(self._began, isolated.state / "cache"))
        return tuple(dict.fromkeys(filter(None, notes)))

    def _silent(self, failures: Sequence[Ended]) -> Iterator[Ended]:
        """Yield the replicas that still run and are stopped, or named by those that lost a peer."""
        named, running = {name for ended in failures for name in ended.accused}, self._numbers()
        stuck = {name: does for ended in failures for name, does in events.stuck(ended.event).items()}
        stopped = {name for name, activity in activities(running).items() if activity.stopped}
        for state in self._states.values():
            name, process = state.replica.name, state.process
            if process and name in named | stopped:
                does = f"still runs and has printed nothing for {time.monotonic() - process.heard:.0f} s"
                does += "; it is stopped (SIGSTOP)" if name in stopped else ""
                yield Ended(state.replica, 0, time=process.heard, instead=stuck.get(name, does))

    def _numbers(self) -> dict[str, int]:
        """Return the number of the first process of each running replica; none in containers, which the engine has."""
        if self._job.isolation.world == "container":
            return {}
        return {state.replica.name: state.process.number for state in self._states.values() if state.process}

    def _stop_all(self) -> None:
        """Stop all replicas: SIGTERM, the grace time, SIGKILL. Another Ctrl-C skips the grace time."""
        running = [state.process for state in self._states.values() if state.process]
        try:
            for process in running:
                process.send_signal(SIGCONT)
                process.send_signal(SIGTERM)
            deadline = time.monotonic() + self._policy.grace
            for process in running:
                process.wait(max(deadline - time.monotonic(), 0))
        finally:
            for process in running:
                process.let_go()
            for process in running:
                process.close()
            for state in self._states.values():
                state.vacate()


def run(job: PreparedJob, show: Show, phase: Callable[[Phase], None] = lambda phase: None) -> Outcome:
    """Run a job to its end from the main thread, which Ctrl-C interrupts."""
    with signals_as_exceptions():
        return Execution(job, show, phase).run()

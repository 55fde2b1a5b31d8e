"""Runs the replicas of one job as processes, with restarts and simulated faults, until the job ends.

The primary is the only replica in pool 0. The job succeeds when the primary exits with code 0. The launcher then
stops all other replicas. No replica process outlives the launcher, even if the launcher is killed.
Source: Vertex AI documentation, "Understand the custom training service", mid-2026.
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
from vertex_launch.local.running.signals import LOOK_SECONDS, signals_as_exceptions
from vertex_launch.local.running.silence import Silence, activities
from vertex_launch.local.running.worlds import Worlds

SETTLE_SECONDS = 1.5  # from the first failure to the end of the attempt: the cause may be a replica that fails later
PEER_SECONDS = 5.0  # instead of SETTLE_SECONDS if the first replica lost a peer, because the peer may exit later
LATE_SECONDS = 1.0  # the delay of a replica's start that can make other replicas fail


class Execution:
    """A running job.

    The `run` method runs it. Any thread can call the other methods to control it.
    """

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
        self._starts = 0  # how many times a replica was started
        self._began = time.time()
        self._silence, self._worlds = Silence(), Worlds(job.addresses)
        self._heard = time.monotonic()  # when any replica last started or printed a line
        self._faults = [*job.faults]  # faults that haven't been simulated yet
        self._step = 0  # the latest step that a replica has printed

    @property
    def statuses(self) -> tuple[Status, ...]:
        return tuple(state.status for state in self._states.values())

    def run(self) -> Outcome:
        """Run the job to completion, and return after all its processes have exited."""
        private(self._job.logs)
        try:
            while (ending := self._run_attempt()) is Ending.STARTS_AGAIN:
                self._stop_all()
            for fault in self._faults:
                self._log(self._states[fault.replica].replica, f"the job ended before this simulated fault: {fault}")
            return self._outcome(ending)
        finally:
            self._stop_all()

    def cancel(self) -> None:
        self._events.put(lambda: self._end(Ending.CANCELLED))

    def disturb(self, action: Action, name: str, number: float = 0) -> None:
        """Simulate a fault in a replica. After a simulated preemption, the launcher restarts the whole job."""
        state = self._states[name]  # a KeyError is an error of the caller
        self._events.put(lambda: self._disturb(state, action, number))

    def _disturb(self, state: ReplicaState, action: Action, number: float) -> None:
        state.disturb(action, self._policy.grace if action == "preempt" else number)

    def open_shell(self, name: str, terminal: str) -> bool:
        """Start a shell in this replica, and connect it to a terminal.

        Return False if the replica isn't running.
        """
        process = self._states[name].process
        if process:
            process.open_shell(terminal)
        return process is not None

    def _run_attempt(self) -> Ending:
        """Run one attempt of the job: start all replicas, and handle events until the attempt ends."""
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
        """Wait until an event arrives or an action is due, and then handle all events that have arrived."""
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
        for ended in attempt.to_tell(now - SETTLE_SECONDS):  # otherwise, all replicas may be about to exit
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
        """Show a line from a replica, and check whether it reports a step at which a simulated fault might be due.

        The replica's reader thread calls this method.
        """
        self._heard = time.monotonic()
        self._show(replica, line, severity)
        if self._faults and (step := step_of(line)):
            self._events.put(lambda: self._reach(step))

    def _reach(self, step: int) -> None:
        self._step = max(self._step, step)

    def _cause_faults(self, now: float) -> None:
        """Simulate all faults that are due. Each fault occurs only once."""
        for fault in [*self._faults]:
            state = self._states[fault.replica]
            if state.is_due(fault, self._step, now):
                self._faults.remove(fault)
                self._disturb(state, fault.action, fault.number)
                self._log(state.replica, f"simulated fault: {fault}")

    def _ended(self, process: Process, ended: Ended) -> None:
        state, attempt = self._states[ended.replica.name], self._attempt
        if state.process is not process:  # this process was stopped, and another process may have replaced it
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
        """Handle a failed replica: restart it, restart all replicas, or let the attempt end."""
        attempt = self._attempt
        preempted = [peer.replica.name for peer in self._states.values() if peer.preempted]
        if preempted and not attempt.failures:  # the preemption may be the cause, and the whole job restarts anyway
            self._log(ended.replica, f"{ended} while {preempted[0]} was being preempted")
        elif not attempt.failures and self._policy.restarts_replica(ended, state.restarts):
            self._restart(state, ended)
        else:
            attempt.failures.append(ended)
            self._settle(PEER_SECONDS if ended.code == PEER_LOST else SETTLE_SECONDS)

    def _restart(self, state: ReplicaState, ended: Ended) -> None:
        state.restarts += 1
        restart = "Restarting all replicas" if self._policy.together else "Restarting this replica"
        self._log(ended.replica, f"{ended}. {restart} (restart {state.restarts} of {self._policy.replica_restarts})")
        if not self._policy.together:
            self._attempt.returned[state.replica.name] = ended
            state.start_again()
        elif ended.code == PEER_LOST:  # the lost peer may report its own error soon
            self._attempt.restart_at = min(self._attempt.restart_at, time.monotonic() + SETTLE_SECONDS)
        else:
            self._restart_all()

    def _restart_all(self) -> None:
        self._attempt.forget()
        self._stop_all()
        for state in self._states.values():
            state.start_again()

    def _preempted(self, ended: Ended) -> None:
        """Restart the whole job after a preemption, unless it has been preempted too many times."""
        limit = self._policy.preemptions
        if self._preemptions >= limit:
            self._end(Ending.PREEMPTED)
        else:
            self._preemptions += 1
            count = f"{self._preemptions} of {limit}"
            self._log(ended.replica, f"{ended.replica.name} was preempted. Restarting the job (restart {count})")
            self._end(Ending.STARTS_AGAIN)

    def _settle(self, seconds: float) -> None:
        """End the attempt after `seconds` seconds, and cancel all planned replica starts."""
        self._attempt.settled = min(self._attempt.settled, time.monotonic() + seconds)
        self._attempt.restart_at = math.inf
        for state in self._states.values():
            state.due = math.inf

    def _conclude(self) -> None:
        """End the attempt, and decide whether the job has succeeded, has failed, or will be retried."""
        attempt, limit = self._attempt, self._policy.job_retries
        if not attempt.failures:
            self._end(Ending.SUCCEEDED)
            return
        cause = attempt.causes[0]
        user_error = self._policy.user_error(attempt.failures, cause)
        if user_error and limit:
            self._log(user_error.replica, f"{user_error}, which is a permanent user error, so the job isn't retried")
        if user_error or self._retries >= limit:
            self._end(Ending.FAILED)
        else:
            self._retries += 1
            self._log(cause.replica, f"{cause}. Retrying the job (retry {self._retries} of {limit})")
            self._end(Ending.STARTS_AGAIN)

    def _look_for_silence(self, now: float) -> None:
        """If no replica has printed a line for a long time, log what each replica is doing."""
        silent = now - self._heard if any(state.process for state in self._states.values()) else 0
        if sentence := self._silence.look(silent, self._numbers()):
            self._log(self._job.replicas[0], sentence)

    def _log(self, replica: Replica, line: str) -> None:
        """Add a line from the launcher to a replica's log."""
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
        """Yield the name and the last lines of each running replica.

        Skip replicas that never exit by themselves, such as parameter servers.
        """
        served = any(state.replica.pool == REDUCERS for state in self._states.values())  # there are parameter servers
        for state in self._states.values():
            if state.process and not (served and state.replica.pool in (WORKERS, REDUCERS)):
                yield state.replica.name, state.process.tail.lines

    def _absent(self) -> Iterator[Ended]:
        """Yield each training replica that never started. Other replicas might be waiting for it.

        Skip replicas that were about to start.
        """
        for state in self._states.values():
            late = state.postponed + self._policy.stagger >= LATE_SECONDS
            if late and state.began == math.inf and state.replica.trains:
                yield Ended(state.replica, 0, instead="hasn't started yet")

    def _files(self) -> tuple[str, ...]:
        """Return distinct sentences about the files that the replicas wrote."""
        notes, isolated = list[str](), self._job.isolation
        with contextlib.suppress(FileNotFoundError):
            notes += (self._job.logs / NOTES).read_text(errors="replace").splitlines()
        if isolated.state and not isolated.mounts and self._starts > 1:
            notes.append(shared_folders.note(self._began, isolated.state / "cache"))
        return tuple(dict.fromkeys(filter(None, notes)))

    def _silent(self, failures: Sequence[Ended]) -> Iterator[Ended]:
        """Yield each running replica that was stopped by SIGSTOP or that other replicas blame as the lost peer."""
        named, running = {name for ended in failures for name in ended.accused}, self._numbers()
        stuck = {name: does for ended in failures for name, does in events.stuck(ended.event).items()}
        stopped = {name for name, activity in activities(running).items() if activity.stopped}
        for state in self._states.values():
            name, process = state.replica.name, state.process
            if process and name in named | stopped:
                does = f"is still running but hasn't printed a line for {time.monotonic() - process.heard:.0f} s"
                does += ". Its process is stopped (SIGSTOP)" if name in stopped else ""
                yield Ended(state.replica, 0, time=process.heard, instead=stuck.get(name, does))

    def _numbers(self) -> dict[str, int]:
        """Map each running replica's name to the ID of its first process.

        Return an empty dictionary if the replicas run in containers.
        """
        if self._job.isolation.world == "container":
            return {}
        return {state.replica.name: state.process.number for state in self._states.values() if state.process}

    def _stop_all(self) -> None:
        """Stop all replicas with SIGTERM and, after a grace period, with SIGKILL.

        If the user presses Ctrl-C again, skip the grace period.
        """
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
    """Run a job to completion.

    Call this function from the main thread, because Ctrl-C interrupts only the main thread.
    """
    with signals_as_exceptions():
        return Execution(job, show, phase).run()

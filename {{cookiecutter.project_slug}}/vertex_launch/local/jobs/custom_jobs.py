"""The life of custom jobs: checked, queued, run and ended; each that runs has a thread.

QUEUED -> PENDING -> RUNNING -> SUCCEEDED, FAILED or (CANCELLING ->) CANCELLED; a FLEX_START job whose wait is too
long is EXPIRED. Source: Vertex AI documentation, "Understand the custom training service", mid 2026.
"""

import contextlib
import threading
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from google.cloud.aiplatform_v1.types import CustomJob, CustomJobSpec, Scheduling

from vertex_launch import rules
from vertex_launch.errors import FaultError, Finding
from vertex_launch.local.api.create_validation import name_findings
from vertex_launch.local.api.errors import ApiError, invalid, rpc_status
from vertex_launch.local.api.store import Resource, Store
from vertex_launch.local.jobs.background import STOPPED, BackgroundTask, BackgroundTasks
from vertex_launch.local.jobs.logs import Journal
from vertex_launch.local.running import host, packages
from vertex_launch.local.running.engine import Execution
from vertex_launch.local.running.namespaces import isolation
from vertex_launch.local.running.placement import place
from vertex_launch.local.running.replica_state import Status
from vertex_launch.local.running.restart_policy import Ending, Outcome, Phase, Policy
from vertex_launch.replicas import Replica
from vertex_launch.settings import Settings
from vertex_launch.spec import Job, Request, as_json
from vertex_launch.state_dir import StateDir

COLLECTION = "customJobs"
PREFIX = "JOB_STATE_"
QUEUED, PENDING, RUNNING, SUCCEEDED, FAILED, CANCELLED, EXPIRED = (
    f"{PREFIX}{state}" for state in ("QUEUED", "PENDING", "RUNNING", "SUCCEEDED", "FAILED", "CANCELLED", "EXPIRED")
)
ENDED = frozenset((SUCCEEDED, FAILED, CANCELLED, EXPIRED))

# Source: the page named above, and "Use Spot VMs with training".
REPLICA_RESTARTS, JOB_RETRIES, SPOT_RESTARTS = 5, 3, 6
LONGEST_SECONDS = 7 * 24 * 3600.0
EVENTS = 1000  # that wait to be shown; of more, the newest
LONGEST_WAIT_SECONDS = 24 * 3600.0  # of FLEX_START, where the job says nothing else; 0 is for ever

Action = Literal["preempt", "kill", "freeze", "delay"]


@dataclass(frozen=True, kw_only=True)
class Options:
    """What the service is told at its start; times in seconds."""

    capacity: int = 16  # replicas at once; further jobs wait in the order of their creation
    provision: float = 0  # until a job's machines arrive
    stagger: float = 0.02  # between two of them
    grace: float = 5  # between SIGTERM and SIGKILL
    reducers_as_ps: bool = True  # whether TF_CONFIG lists reducers; the documentation does not say
    retry_user_errors: bool = False  # whether also a program's own error starts again


@dataclass(frozen=True)
class Extras:
    """What a tuning trial or a training pipeline adds to its job."""

    env: Mapping[str, str] = field(default_factory=dict)
    trial: str = ""


@dataclass
class _Ticket(BackgroundTask):
    """A job that has not ended."""

    job: Job
    extras: Extras
    size: int  # replicas to start
    execution: Execution | None = None
    timer: threading.Timer | None = None  # until it expires in the queue


class Jobs(BackgroundTasks[_Ticket]):
    """All custom jobs of the service; thread-safe."""

    collection, noun, prefix, ended = COLLECTION, "job", PREFIX, ENDED

    def __init__(
        self, store: Store, state_dir: StateDir, settings: Settings, environ: Mapping[str, str], options: Options
    ) -> None:
        super().__init__(store)
        self._state_dir = state_dir
        self._settings = settings
        self._environ = environ
        self._options = options
        self._queue: deque[_Ticket] = deque()
        self.events: deque[tuple[str, str, str]] = deque(maxlen=EVENTS)  # id and name of a job, what happened to it

    def create(self, parent: str, message: CustomJob, extras: Extras | None = None) -> Resource:
        """Check a job and queue it.

        Raises:
            ApiError: INVALID_ARGUMENT with all faults, or RESOURCE_EXHAUSTED for a job that can never run here.
        """
        name = f"{parent}/{COLLECTION}/{self._store.new_id()}"
        job = Job(Request(message.display_name), message.display_name, CustomJobSpec(message.job_spec))
        findings = [*name_findings(message.display_name), *self.findings(parent, job, "jobSpec")]
        if findings:
            raise invalid(findings)
        return self._begin(_Ticket(name, job, extras or Extras(), _size(job)), as_json(message) | {"state": QUEUED})

    def cancel(self, name: str) -> None:
        """Begin to stop a job; raises ApiError NOT_FOUND, or FAILED_PRECONDITION for one that has ended."""
        with self._lock:
            if self._leave_queue(name):
                self._store.end(name, CANCELLED, rpc_status("CANCELLED", "the job was cancelled before it started"))
            else:
                super().cancel(name)

    def disturb(self, name: str, action: Action, replica: str, seconds: float) -> None:
        """Do to a replica what happens to machines; raises ApiError."""
        with self._lock:
            state = self._store.get(name)["state"]
            ticket = self._running.get(name)
        if ticket is None or ticket.execution is None:
            raise ApiError("FAILED_PRECONDITION", f"{name} is in state {state}; it has no replicas now")
        if action == "preempt" and _strategy(ticket.job) != Scheduling.Strategy.SPOT:
            raise ApiError("FAILED_PRECONDITION", f"{name} does not use SPOT, so no machine is preempted; use kill")
        if replica not in (status.name for status in ticket.execution.statuses):
            known = ", ".join(status.name for status in ticket.execution.statuses)
            raise ApiError("NOT_FOUND", f'{name} has no replica "{replica}" that runs here; it has {known}')
        calls: Mapping[Action, Callable[[Execution], None]] = {
            "preempt": lambda execution: execution.preempt(replica),
            "kill": lambda execution: execution.kill(replica),
            "freeze": lambda execution: execution.freeze(replica, seconds),
            "delay": lambda execution: execution.delay(replica, seconds),
        }
        calls[action](ticket.execution)

    def statuses(self, name: str) -> tuple[Status, ...]:
        """The replicas of a job that runs now."""
        ticket = self._running.get(name)
        return ticket.execution.statuses if ticket and ticket.execution else ()

    def findings(self, parent: str, job: Job, place: str) -> list[Finding]:
        """What is wrong with a job that stands at `place`.

        The rules are those of `vertex-launch check`, with project and region of the request.

        Raises:
            ApiError: RESOURCE_EXHAUSTED for a job that can never run here.
        """
        size = _size(job)
        if size > self._options.capacity:
            raise ApiError(
                "RESOURCE_EXHAUSTED",
                f"the job has {size} replicas, and this service runs {self._options.capacity} at once;"
                f" start it with --capacity {size}",
            )
        _, project, _, region = parent.split("/")
        settings = replace(self._settings, project=project, region=region)
        return [one.below(place) for one in rules.findings(job, settings) if one.severity == "error"]

    def close(self) -> None:
        """Stop every job; returns when no process is left."""
        with self._lock:
            while self._queue:
                ticket = self._queue.popleft()
                _stop_timer(ticket)
                self._store.end(ticket.name, FAILED, STOPPED)
            super().close()  # while it waits, the lock is free

    @property
    def _free(self) -> int:
        """Replicas that can start now."""
        return self._options.capacity - sum(ticket.size for ticket in self._running.values())

    def _admit(self, ticket: _Ticket) -> None:
        self._queue.append(ticket)
        self._dispatch()
        if ticket in self._queue:
            self._expire_later(ticket)

    def _leave(self, ticket: _Ticket) -> None:
        super()._leave(ticket)
        self._dispatch()

    def _dispatch(self) -> None:
        """Start what fits, oldest first: none overtakes another, so a large job is not starved."""
        while self._queue and self._queue[0].size <= self._free:
            ticket = self._queue.popleft()
            _stop_timer(ticket)
            self._store.update(ticket.name, state=PENDING)
            self._start(ticket)

    def _work(self, ticket: _Ticket) -> None:
        """From its first machine to its last."""
        try:
            with contextlib.closing(Journal(self._state_dir.journal(ticket.id))) as journal:
                outcome = self._execute(ticket, journal)
        except FaultError as error:  # what only shows when it is to start: no command, no such package
            raise ApiError("INVALID_ARGUMENT", str(error)) from None
        finally:
            host.remove_empty_home(self._state_dir, ticket.id)
        if not outcome.succeeded:
            status = {Ending.TIMED_OUT: "DEADLINE_EXCEEDED", Ending.PREEMPTED: "RESOURCE_EXHAUSTED"}
            message = f"{outcome.message}\nLogs: {self._state_dir.logs(ticket.id)}"
            raise ApiError(status.get(outcome.ending, "INVALID_ARGUMENT"), message)

    def _execute(self, ticket: _Ticket, journal: Journal) -> Outcome:
        everyone = self._replicas(ticket)

        def show(replica: Replica, line: str, severity: str) -> None:
            journal.write(replica.name, line, severity)

        def entered(phase: Phase) -> None:
            self._enter(ticket, RUNNING if phase is Phase.RUNNING else PENDING)

        execution = Execution(
            everyone,
            self._state_dir.logs(ticket.id),
            show,
            policy(ticket.job, self._options),
            phase=entered,
            isolated=isolation(self._state_dir.buckets),
            told=lambda line: self.events.append((ticket.id, ticket.job.name, line)),
        )
        with self._lock:
            ticket.execution = execution
            if ticket.stopping.is_set():
                execution.cancel()
        return execution.run()

    def _replicas(self, ticket: _Ticket) -> list[Replica]:
        everyone = place(
            ticket.job,
            ticket.id,
            self._state_dir,
            self._environ,
            self._settings,
            ticket.extras.trial,
            self._options.reducers_as_ps,
            lambda replica: self._additions(ticket, replica),
        )
        started = [one for one in everyone if not one.reduces]
        folder = self._state_dir.logs(ticket.id)
        return packages.prepared(ticket.job, started, folder, self._state_dir.buckets, self._environ, ticket.stopping)

    def _additions(self, ticket: _Ticket, replica: str) -> dict[str, str]:
        """What the pipeline or trial adds to a replica's environment."""
        tuning = {"CLOUD_ML_HP_METRIC_FILE": str(self._state_dir.metrics(ticket.id, replica))}
        return {**ticket.extras.env, **(tuning if ticket.extras.trial else {})}

    def _stop(self, ticket: _Ticket) -> None:
        super()._stop(ticket)
        if ticket.execution:
            ticket.execution.cancel()

    def _leave_queue(self, name: str) -> bool:
        """Whether the job was waiting; then it no longer is."""
        for ticket in self._queue:
            if ticket.name == name:
                _stop_timer(ticket)
                self._queue.remove(ticket)
                self._dispatch()  # what stood behind it may fit
                return True
        return False

    def _expire_later(self, ticket: _Ticket) -> None:
        seconds = _longest_wait(ticket.job)
        if seconds:
            ticket.timer = threading.Timer(seconds, self._expire, args=(ticket.name, seconds))
            ticket.timer.daemon = True
            ticket.timer.start()

    def _expire(self, name: str, seconds: float) -> None:
        with self._lock:
            if self._leave_queue(name):
                message = f"no machines for {seconds:g} s, the maxWaitDuration of this FLEX_START job"
                self._store.end(name, EXPIRED, rpc_status("DEADLINE_EXCEEDED", message))


def policy(job: Job, options: Options) -> Policy:
    """When the service starts replicas or the job again."""
    scheduling = job.spec.scheduling
    retries = not scheduling.disable_retries
    return Policy(
        replica_restarts=REPLICA_RESTARTS if retries else 0,
        job_retries=JOB_RETRIES if retries else 0,
        preemptions=SPOT_RESTARTS if _strategy(job) == Scheduling.Strategy.SPOT else 0,
        together=scheduling.restart_job_on_worker_restart and retries,
        retry_user_errors=options.retry_user_errors,
        timeout=scheduling.timeout.total_seconds() if "timeout" in scheduling else LONGEST_SECONDS,
        grace=options.grace,
        provision=options.provision,
        stagger=options.stagger,
    )


def _stop_timer(ticket: _Ticket) -> None:
    if ticket.timer:
        ticket.timer.cancel()


def _size(job: Job) -> int:
    """Replicas to start; reducers only exist in Google's image."""
    return sum(pool.replica_count for pool in job.pools if not pool.reduces)


def _strategy(job: Job) -> Scheduling.Strategy:
    return Scheduling.Strategy(job.spec.scheduling.strategy)


def _longest_wait(job: Job) -> float:
    """Seconds that a FLEX_START job may be queued; 0 for all others and for one that waits for ever."""
    if _strategy(job) != Scheduling.Strategy.FLEX_START:
        return 0
    if "max_wait_duration" not in job.spec.scheduling:
        return LONGEST_WAIT_SECONDS
    return float(job.spec.scheduling.max_wait_duration.total_seconds())

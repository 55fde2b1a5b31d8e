"""Checks, queues, and runs custom jobs. Each job runs in its own thread.

A job's states are QUEUED, PENDING, RUNNING, and finally SUCCEEDED, FAILED, or (after CANCELLING) CANCELLED. If a
FLEX_START job waits too long, its state becomes EXPIRED.
Source: Vertex AI documentation, "Understand the custom training service", mid-2026.
"""

import contextlib
import secrets
import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from google.cloud.aiplatform_v1.types.custom_job import CustomJob, CustomJobSpec
from google.protobuf import json_format

from vertex_launch import rules
from vertex_launch.errors import FaultError, Finding
from vertex_launch.facts.labels import name_findings
from vertex_launch.job import job_resource, lease
from vertex_launch.job.job_resource import Resource, id_of
from vertex_launch.job.spec import Job, as_json
from vertex_launch.job.state_dir import output_folder
from vertex_launch.local.api.errors import ApiError, refuse
from vertex_launch.local.api.store import Store
from vertex_launch.local.jobs import experiments, resource_pools
from vertex_launch.local.jobs.background import BackgroundTask, BackgroundTasks, repeating
from vertex_launch.local.jobs.experiments import Curves
from vertex_launch.local.jobs.resource_pools import Machines
from vertex_launch.local.rpc_status import rpc_status
from vertex_launch.local.running import host, journal
from vertex_launch.local.running.context import Context
from vertex_launch.local.running.engine import Execution
from vertex_launch.local.running.faults import Action
from vertex_launch.local.running.journal import SERVICE, Journal
from vertex_launch.local.running.outcome import Outcome, Phase
from vertex_launch.local.running.prepare import Extras, prepare, size
from vertex_launch.local.running.replica_state import Status
from vertex_launch.local.wire.wire import Wire
from vertex_launch.rules import NOWHERE, RuleContext

COLLECTION = "customJobs"
PREFIX = "JOB_STATE_"
QUEUED, PENDING, SUCCEEDED, FAILED = (f"{PREFIX}{state}" for state in ("QUEUED", "PENDING", "SUCCEEDED", "FAILED"))
ENDED = frozenset((SUCCEEDED, FAILED, f"{PREFIX}CANCELLED", f"{PREFIX}EXPIRED"))

DEPENDS = "dependsOnAnother"  # an internal field of a job that ends when its tuning job or pipeline ends
SHELLS = "webAccessUris"  # the URLs of shells by replica while the job runs
EVENTS = 1000  # the maximum number of recent events to keep until the terminal shows them
LONGEST_WAIT_SECONDS = 24 * 3600.0  # the default maximum wait of FLEX_START jobs; 0 means no limit


@dataclass
class _Ticket(BackgroundTask):
    """A custom job that hasn't ended."""

    job: Job
    extras: Extras
    needs: Sequence[Machines]  # the machines that the job takes from each stock, in the order of the stocks
    starts: bool = False  # if False, the job is queued
    execution: Execution | None = None
    timer: threading.Timer | None = None  # the timer of the job's expiration in the queue


class Jobs(BackgroundTasks[_Ticket]):
    """The service's custom jobs. The class is thread-safe."""

    collection, message, noun, prefix, ended = COLLECTION, CustomJob, "job", PREFIX, ENDED
    transient = (SHELLS,)

    def __init__(self, store: Store, context: Context, endpoint: str = "") -> None:
        self._context = context
        self._endpoint = endpoint
        self._wire = Wire(context, endpoint)
        self._seen: dict[Path, int] = {}  # job folder -> time of its last change
        self.events: deque[tuple[str, str, str]] = deque(maxlen=EVENTS)  # job ID, job name, event
        host.remove_left_homes(context.state_dir)
        super().__init__(store)

    def create(self, parent: str, message: CustomJob, extras: Extras | None = None) -> Resource:
        """Check a job, and add it to the queue.

        Raises ApiError with all errors if the job isn't valid or can never run on this machine.
        """
        name = f"{parent}/{COLLECTION}/{self._store.new_id()}"
        with self._lock:  # so that no persistent resource is deleted in between
            ticket = self._ticket(name, message, extras)
            experiments.join(self._store, ticket.job.spec, name)
            resource = as_json(message) | {"jobSpec": as_json(ticket.job.spec), "state": QUEUED, DEPENDS: bool(extras)}
            return self._begin(ticket, resource)

    def _ticket(self, name: str, message: CustomJob, extras: Extras | None = None) -> _Ticket:
        """Return a ticket for a job. Raises ApiError if the job isn't valid or can never run on this machine."""
        job = Job(f"request {message.display_name}", message.display_name, CustomJobSpec(message.job_spec))
        ticket = _Ticket(name, job, extras or Extras(), ())
        refuse([*name_findings(message.display_name), *self.findings(ticket.parent, job, "jobSpec")])
        return replace(ticket, needs=resource_pools.needs(ticket.parent, job, self._context.options))

    def cancel(self, name: str, why: str = "") -> None:
        """Request the cancellation of a job.

        Raises ApiError NOT_FOUND if the job doesn't exist, and FAILED_PRECONDITION if the job has ended.
        """
        with self._lock:
            if self._is_of_a_run(name):
                raise ApiError("FAILED_PRECONDITION", f"the `run` command started {name}; stop that command")
            super().cancel(name, why)

    def disturb(self, name: str, action: Action, replica: str, seconds: float) -> None:
        """Simulate a fault in a replica. Raises ApiError if the fault can't be simulated."""
        with self._lock:
            state = self._store.get(name)["state"]
            ticket = self._tasks.get(name)
        if ticket is None or ticket.execution is None:
            raise ApiError("FAILED_PRECONDITION", f"{name} is in state {state}, so it doesn't have running replicas")
        if action == "preempt" and ticket.job.strategy != "SPOT":
            raise ApiError("FAILED_PRECONDITION", f"{name} doesn't use SPOT, so it can't be preempted; use kill")
        names = [status.name for status in ticket.execution.statuses]
        if replica not in names:
            raise ApiError(
                "NOT_FOUND", f'{name} doesn\'t have a local replica "{replica}"; use one of {", ".join(names)}'
            )
        ticket.execution.disturb(action, replica, seconds)

    def open_shell(self, path: str, terminal: str) -> bool:
        """Start a shell and connect it to a terminal. The shell runs in the replica whose shell URL has this path.

        Return whether the shell was started.
        """
        asked = f"{self._endpoint}{path}".encode()
        for ticket in [*self._tasks.values()]:
            for replica, address in self._store.get(ticket.name).get(SHELLS, {}).items():
                if ticket.execution and secrets.compare_digest(address.encode(), asked):
                    return ticket.execution.open_shell(replica, terminal)
        return False

    def statuses(self, name: str) -> tuple[Status, ...]:
        """Return the states of a job's replicas. Return an empty tuple if the job isn't running."""
        ticket = self._tasks.get(name)
        return ticket.execution.statuses if ticket and ticket.execution else ()

    def findings(self, parent: str, job: Job, place: str) -> list[Finding]:
        """Return a job's errors, with `place` prepended to each error's location.

        The errors report missing local resources and violations of the `vertex-launch check` rules for the
        request's project and region. Local resources include experiments, TensorBoard instances, persistent resources,
        and the mlflow package. Raises ApiError RESOURCE_EXHAUSTED if the job can never run on this machine.
        """
        self.require_capacity(size(job), "job")
        found = [one for one in rules.findings(job, self._at(parent).settings) if one.severity == "error"]
        missing = [*experiments.findings(self._store, job), *resource_pools.findings(self._store, parent, job)]
        found += [finding for finding in missing if finding.place not in {one.place for one in found}]
        return [finding.below(place) for finding in found]

    def require_capacity(self, count: int, noun: str) -> None:
        """Raise ApiError RESOURCE_EXHAUSTED if the service can't run this many replicas at the same time."""
        capacity = self._context.options.capacity
        if count > capacity:
            fault = f"the {noun} has {count} replicas, but this service runs at most {capacity} at a time"
            raise ApiError("RESOURCE_EXHAUSTED", f"{fault}; start the service with --capacity {count}")

    def rule_context(self, parent: str) -> RuleContext:
        """Return the rule context for a project and region."""
        settings = self._at(parent).settings
        return RuleContext(settings, settings.catalog, NOWHERE)

    def used(self) -> Machines:
        """Return the machines that running jobs use."""
        with self._lock:
            started = [ticket for ticket in self._tasks.values() if ticket.starts]
        return sum((needs for ticket in started for needs in ticket.needs), Machines())

    def clear(self, resource: str) -> None:
        """Cancel all jobs on a persistent resource, and wait until the last one has ended."""

        def here() -> list[str]:
            tickets = self._tasks.values()
            return [one.name for one in tickets if resource_pools.resource_of(one.parent, one.job) == resource]

        with self._lock:
            for name in here():
                self.cancel(name)
            self._lock.wait_for(lambda: not here())

    def follow_runs(self) -> None:
        """Read the jobs that `run` commands wrote to the state folder. End jobs whose `run` process was killed."""
        folder = self._context.state_dir.folder
        stored = {job["name"] for job in self._store.all(COLLECTION)}
        with contextlib.suppress(OSError):  # the user may be cleaning up
            for path in folder.glob(f"projects/*/locations/*/{COLLECTION}"):
                changed = path.stat().st_mtime_ns
                if self._seen.get(path) != changed:
                    names = {file.relative_to(folder).as_posix().removesuffix(".json") for file in path.glob("*.json")}
                    for name in names - stored:
                        self._store.reread(name)
                    self._seen[path] = changed
        for job in self._store.all(COLLECTION):
            # A new job is in the store a moment before the job is in the queue. Meanwhile, a client may delete the job.
            with self._lock, contextlib.suppress(ApiError):
                if self._is_of_a_run(job["name"]):
                    self._lose(job)

    def _is_of_a_run(self, name: str) -> bool:
        """Return whether a job was started by the `run` command and hasn't ended. The caller must hold the lock."""
        return self._store.get(name).get("state") not in ENDED and name not in self._tasks

    def _lose(self, resource: Resource) -> None:
        """Set the final state of a job whose process has exited.

        Don't end a queued job or one that the `run` command is still running.
        """
        name = resource["name"]
        if resource["state"] == QUEUED and not resource.get(DEPENDS):
            if self._endpoint:  # otherwise, the job waits for a service
                self._requeue(name, resource)
            return
        goes_on = journal.is_open(self._context.state_dir.journal(id_of(name)))
        self._store.reread(name)  # after `is_open`: `run` writes the end of a job before it closes the journal
        if not goes_on and self._store.get(name).get("state") not in ENDED:
            super()._lose(resource)

    def _requeue(self, name: str, resource: Resource) -> None:
        pb = json_format.ParseDict(resource, CustomJob.pb(CustomJob()), ignore_unknown_fields=True)
        try:
            self._tasks[name] = self._ticket(name, CustomJob(pb))
        except ApiError as error:  # the capacity of this service is different, or a resource of the job was deleted
            self._end(name, "FAILED", error.rpc)
        else:
            self._admit(self._tasks[name])

    def _resumes(self, resource: Resource) -> str:
        folder = job_resource.output_folder(resource)
        saved = self._buckets / folder.removeprefix("gs://") / "checkpoints"  # AIP_CHECKPOINT_DIR
        return f". The new job will resume from {folder}/checkpoints" if folder and any(saved.glob("*")) else ""

    def _admit(self, ticket: _Ticket) -> None:
        self.dispatch()
        if not ticket.starts and (seconds := _longest_wait(ticket.job)):
            ticket.timer = threading.Timer(seconds, self._expire, args=(ticket, seconds))
            ticket.timer.daemon = True
            ticket.timer.start()

    def _finish(self, ticket: _Ticket, state: str, error: dict[str, Any] | None) -> None:
        super()._finish(ticket, state, error)
        if ticket.timer:
            ticket.timer.cancel()
        if not self._closed:
            self.dispatch()

    def dispatch(self) -> None:
        """Start the jobs for which enough machines are free, strictly in queue order, so that large jobs don't starve.

        If a region or persistent resource lacks free capacity, only jobs that use it wait.
        """
        with self._lock:
            room = resource_pools.stocks(self._store, self._context.options)
            room.subtract(self.used())
            for ticket in [ticket for ticket in self._tasks.values() if not ticket.starts]:
                if all(_taken(room, needs) for needs in ticket.needs):
                    ticket.starts = True
                    if ticket.timer:
                        ticket.timer.cancel()
                    self._store.update(ticket.name, state=PENDING)
                    super()._admit(ticket)

    def _work(self, ticket: _Ticket) -> None:
        path = self._context.state_dir.journal(ticket.id)
        try:
            wired = self._wire.of_job(ticket.job, ticket.id, self._at(ticket.parent))
            with contextlib.closing(Journal(path)) as lines, wired as context, self._curves(ticket):
                outcome = self._execute(ticket, lines, context)
                for note in outcome.notes:
                    lines.write(SERVICE, note)
        except FaultError as error:  # raised only at the start, such as for a missing command or package
            raise ApiError("INVALID_ARGUMENT", str(error)) from None
        finally:
            host.remove_home(self._context.state_dir, ticket.id)
        if not outcome.succeeded:
            raise ApiError(outcome.status, f"{outcome.message}\nLogs: {path.parent}")

    def _at(self, parent: str) -> Context:
        """Return a context with the project and region of a request."""
        _, project, _, region = parent.split("/")
        return replace(self._context, settings=replace(self._context.settings, project=project, region=region))

    def _curves(self, ticket: _Ticket) -> contextlib.AbstractContextManager[None]:
        """Return a context manager that copies a job's curves to its TensorBoard instance, if any."""
        output = output_folder(ticket.job, self._context.state_dir)
        if not (output and ticket.job.spec.tensorboard):
            return contextlib.nullcontext()
        folder = output / ticket.extras.trial / "logs"  # AIP_TENSORBOARD_LOG_DIR
        followed = Curves(self._store, ticket.name, ticket.job.spec.tensorboard, folder)
        return repeating(followed.follow, experiments.EVERY)

    def _execute(self, ticket: _Ticket, lines: Journal, context: Context) -> Outcome:
        output = output_folder(ticket.job, context.state_dir)
        lease.require_free(output and output / ticket.extras.trial, "", seconds=0)
        execution = Execution(
            prepare(ticket.job, ticket.id, context, ticket.extras, ticket.stopping),
            lambda replica, line, severity: lines.write(replica.name, line, severity),
            lambda phase: self._enter_phase(ticket, phase),
            lambda event: self.events.append((ticket.id, ticket.job.name, event)),
        )
        with self._lock:
            ticket.execution = execution
            if ticket.stopping.is_set():
                execution.cancel()
        return execution.run()

    def _enter_phase(self, ticket: _Ticket, phase: Phase) -> None:
        """Set a job's state. When a job with web access starts running, add a shell URL for each replica."""
        if phase == "RUNNING" and ticket.job.spec.enable_web_access and self._endpoint and ticket.execution:
            at, names = f"{self._endpoint}/shell/{ticket.id}", [one.name for one in ticket.execution.statuses]
            addresses = {name: f"{at}/{name}/{secrets.token_urlsafe()}" for name in names}
            self._store.update(ticket.name, **{SHELLS: addresses})
        self._enter(ticket, phase)

    def _stop(self, ticket: _Ticket) -> None:
        super()._stop(ticket)
        if ticket.execution:
            ticket.execution.cancel()
        elif not ticket.starts:
            self._finish(ticket, *self._stopped(ticket.name))

    def _expire(self, ticket: _Ticket, seconds: float) -> None:
        message = f"no machines became available within {seconds:g} s, the maxWaitDuration of this FLEX_START job"
        with self._lock:
            if not ticket.starts and ticket.name in self._tasks:
                self._finish(ticket, "EXPIRED", rpc_status("DEADLINE_EXCEEDED", message))


def _taken(room: Machines, needs: Machines) -> bool:
    """Reserve machines, and return whether enough were available.

    If too few are available, all later jobs that need the same capacity also wait.
    """
    room.subtract(needs)
    return all(room[stock] >= 0 for stock in needs)


def _longest_wait(job: Job) -> float:
    """Return the maximum wait time of a FLEX_START job in seconds. Return 0 if the job can wait indefinitely."""
    if job.strategy != "FLEX_START":
        return 0
    if "max_wait_duration" not in job.spec.scheduling:
        return LONGEST_WAIT_SECONDS
    return float(job.spec.scheduling.max_wait_duration.total_seconds())

"""Tasks, which custom jobs, tuning jobs and pipelines are: each has a thread, can be cancelled, and ends once."""

import contextlib
import threading
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from vertex_launch.job.job_resource import Resource, id_of
from vertex_launch.local.api.collection import Act, Collection
from vertex_launch.local.api.errors import ApiError, our_fault
from vertex_launch.local.api.store import Store
from vertex_launch.local.resource_file import now
from vertex_launch.local.rpc_status import rpc_status

STOPPED = "the local Vertex was stopped while this job had not ended; create it again"


@contextlib.contextmanager
def repeating(act: Callable[[], None], seconds: float) -> Iterator[None]:
    """Act every so many seconds, from another thread, and once more when the block ends."""
    closing = threading.Event()

    def repeat() -> None:
        while not closing.wait(seconds):
            act()
        act()

    thread = threading.Thread(target=repeat, name=act.__qualname__, daemon=True)
    thread.start()
    try:
        yield
    finally:
        closing.set()
        thread.join()


@dataclass
class BackgroundTask:
    """A job, tuning job or pipeline that has not ended."""

    name: str
    stopping: threading.Event = field(default_factory=threading.Event, kw_only=True)
    why: str = field(default="", kw_only=True)  # it is stopped, in words; "" if a client cancels it

    @property
    def parent(self) -> str:
        return self.name.rsplit("/", 2)[0]

    @property
    def id(self) -> str:
        return id_of(self.name)

    def raise_if_stopping(self) -> None:
        """Raises ApiError CANCELLED."""
        if self.stopping.is_set():
            raise ApiError("CANCELLED", f"{self.name} was cancelled")


Task = TypeVar("Task", bound=BackgroundTask)


class BackgroundTasks(Collection, ABC, Generic[Task]):
    """All tasks of one collection; thread-safe. A subclass says what a task does while it runs."""

    noun: str  # in messages
    prefix: str  # of the states
    ended: frozenset[str]  # the final states
    transient: tuple[str, ...] = ()  # fields of a task that has not ended

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self._lock = threading.Condition()  # reentrant; notified when a task ends
        self._tasks: dict[str, Task] = {}
        self._closed = False
        for resource in reversed(store.all(self.collection)):  # the oldest first, as they were queued
            if str(resource.get("state")) not in self.ended:
                self._lose(resource)

    def methods(self) -> dict[str, Act]:
        return super().methods() | {f"POST {self.collection}/*:cancel": lambda call, name: self.cancel(name)}

    def cancel(self, name: str, why: str = "") -> None:
        """Begin to stop a task; raises ApiError NOT_FOUND, or FAILED_PRECONDITION if it has ended."""
        with self._lock:
            state = self._store.get(name)["state"]
            if state in self.ended:
                kind = f"{self.collection[0].upper()}{self.collection[1:-1]}"  # CustomJob of customJobs
                raise ApiError("FAILED_PRECONDITION", f'The {kind} "{name}" is in state {state} and cannot be canceled')
            self._store.update(name, state=f"{self.prefix}CANCELLING")
            self._tasks[name].why = why
            self._stop(self._tasks[name])

    def delete(self, name: str) -> None:
        """Delete the resource of an ended task; raises ApiError NOT_FOUND or FAILED_PRECONDITION."""
        with self._lock:
            state = self._store.get(name)["state"]
            if state not in self.ended:
                raise ApiError("FAILED_PRECONDITION", f"{name} is in state {state}; cancel it and wait for its end")
            super().delete(name)

    def close(self) -> None:
        """Stop all tasks; returns once the last one has ended."""
        with self._lock:
            self._closed = True
            for task in [*self._tasks.values()]:
                self._stop(task)
            self._lock.wait_for(lambda: not self._tasks)

    @abstractmethod
    def _work(self, task: Task) -> None:
        """Do the task in its own thread; raises ApiError unless it succeeds."""

    def _lose(self, resource: Resource) -> None:
        """End what had not ended when an earlier service did."""
        self._end(resource["name"], *self._stopped(resource["name"]))

    def _begin(self, task: Task, resource: Resource) -> Resource:
        """Store and admit a new task; raises ApiError."""
        with self._lock:
            if self._closed:
                raise ApiError("UNAVAILABLE", "the local Vertex is stopping")
            self._store.create(task.name, resource)
            self._tasks[task.name] = task
            self._admit(task)
            return self._store.get(task.name)

    def _admit(self, task: Task) -> None:
        """Start the task's thread; the caller holds the lock, so the task cannot end before it is registered."""
        # A daemon thread, so that an interrupted `close` waits for nothing; the replicas end with the service.
        threading.Thread(target=self._run, args=(task,), name=task.id, daemon=True).start()

    def _enter(self, task: Task, state: str) -> None:
        """Set an intermediate state, named without its prefix, unless the task is already being stopped."""
        with self._lock:
            if not task.stopping.is_set():
                first = state == "RUNNING" and "startTime" not in self._store.get(task.name)
                times = {"startTime": now()} if first else {}
                self._store.update(task.name, state=f"{self.prefix}{state}", **times)

    def _end(self, name: str, state: str, error: dict[str, Any] | None = None) -> None:
        """Set the last state, named without its prefix, and why it is not SUCCEEDED."""
        gone = dict.fromkeys(self.transient)
        self._store.update(name, state=f"{self.prefix}{state}", endTime=now(), error=error, **gone)

    def _stop(self, task: Task) -> None:
        """Make `_work` return soon; the caller holds the lock."""
        task.stopping.set()

    def _run(self, task: Task) -> None:
        state, error = "SUCCEEDED", None
        try:
            self._work(task)
        except ApiError as raised:
            state, error = "FAILED", raised.rpc
        except Exception as raised:  # a fault of ours must not leave the task running for ever
            traceback.print_exception(raised)
            state, error = "FAILED", our_fault(raised).rpc
        with self._lock:  # otherwise `cancel` could overwrite the final state
            if error and task.stopping.is_set():  # being stopped explains any failure
                state, error = self._stopped(task.name, task.why)
            self._finish(task, state, error)

    def _stopped(self, name: str, why: str = "") -> tuple[str, dict[str, Any]]:
        """The state and the error of a task that somebody has stopped: a client, or the end of the service."""
        resource = self._store.get(name)
        if resource["state"] == f"{self.prefix}CANCELLING":
            # The service's text contains this word, by which Prefect's worker tells a cancellation from a failure; the
            # rest is not known. Source: prefect-gcp 0.6.22, workers/vertex.py.
            return "CANCELLED", rpc_status("CANCELLED", why or f"CANCELED: the {self.noun} was cancelled")
        return "FAILED", rpc_status("UNAVAILABLE", f"{STOPPED}{self._resumes(resource)}")

    def _resumes(self, resource: Resource) -> str:
        """The words after STOPPED, for a task that resumes if it is created again."""
        return ""

    def _finish(self, task: Task, state: str, error: dict[str, Any] | None) -> None:
        """End a task and forget it; the caller holds the lock."""
        self._end(task.name, state, error)
        del self._tasks[task.name]
        self._lock.notify_all()

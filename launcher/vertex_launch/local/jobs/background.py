"""Runs custom jobs, tuning jobs, and pipelines as cancelable background tasks, each in its own thread."""

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

STOPPED = "the local Vertex was stopped before this job ended; create the job again"


@contextlib.contextmanager
def repeating(act: Callable[[], None], seconds: float) -> Iterator[None]:
    """Call `act` in a separate thread every `seconds` seconds, and once more when the `with` block ends."""
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
    """A custom job, tuning job, or pipeline that hasn't ended."""

    name: str
    stopping: threading.Event = field(default_factory=threading.Event, kw_only=True)
    why: str = field(default="", kw_only=True)  # the reason for a stop, or "" if a client cancels the task

    @property
    def parent(self) -> str:
        return self.name.rsplit("/", 2)[0]

    @property
    def id(self) -> str:
        return id_of(self.name)

    def raise_if_stopping(self) -> None:
        """Raise ApiError CANCELLED if the task is being stopped."""
        if self.stopping.is_set():
            raise ApiError("CANCELLED", f"{self.name} was canceled")


Task = TypeVar("Task", bound=BackgroundTask)


class BackgroundTasks(Collection, ABC, Generic[Task]):
    """The background tasks in one collection. The class is thread-safe. Subclasses define what a task does."""

    noun: str  # the name of a task in messages
    prefix: str  # the prefix of the states
    ended: frozenset[str]  # the final states
    transient: tuple[str, ...] = ()  # the fields that only unfinished tasks contain

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self._lock = threading.Condition()  # reentrant; notified when a task ends
        self._tasks: dict[str, Task] = {}
        self._closed = False
        for resource in reversed(store.all(self.collection)):  # in queue order, oldest first
            if str(resource.get("state")) not in self.ended:
                self._lose(resource)

    def methods(self) -> dict[str, Act]:
        return super().methods() | {f"POST {self.collection}/*:cancel": lambda call, name: self.cancel(name)}

    def cancel(self, name: str, why: str = "") -> None:
        """Request the cancellation of a task.

        Raises ApiError NOT_FOUND if the task doesn't exist, and FAILED_PRECONDITION if the task has ended.
        """
        with self._lock:
            state = self._store.get(name)["state"]
            if state in self.ended:
                kind = f"{self.collection[0].upper()}{self.collection[1:-1]}"  # CustomJob of customJobs
                raise ApiError("FAILED_PRECONDITION", f'The {kind} "{name}" is in state {state} and cannot be canceled')
            self._store.update(name, state=f"{self.prefix}CANCELLING")
            self._tasks[name].why = why
            self._stop(self._tasks[name])

    def delete(self, name: str) -> None:
        """Delete a task's resource.

        Raises ApiError NOT_FOUND if the task doesn't exist, and FAILED_PRECONDITION if it hasn't ended.
        """
        with self._lock:
            state = self._store.get(name)["state"]
            if state not in self.ended:
                raise ApiError(
                    "FAILED_PRECONDITION", f"{name} is in state {state}; cancel the task, and wait until it ends"
                )
            super().delete(name)

    def close(self) -> None:
        """Stop all tasks, and wait until the last one has ended."""
        with self._lock:
            self._closed = True
            for task in [*self._tasks.values()]:
                self._stop(task)
            self._lock.wait_for(lambda: not self._tasks)

    @abstractmethod
    def _work(self, task: Task) -> None:
        """Run the task in its own thread. Raises ApiError if the task fails."""

    def _lose(self, resource: Resource) -> None:
        """Set the final state of a task that an earlier service process didn't finish."""
        self._end(resource["name"], *self._stopped(resource["name"]))

    def _begin(self, task: Task, resource: Resource) -> Resource:
        """Store a new task, and start or queue it.

        Raises ApiError if the service is stopping or can't store the task.
        """
        with self._lock:
            if self._closed:
                raise ApiError("UNAVAILABLE", "the local Vertex is stopping")
            self._store.create(task.name, resource)
            self._tasks[task.name] = task
            self._admit(task)
            return self._store.get(task.name)

    def _admit(self, task: Task) -> None:
        """Start a task's thread.

        The caller must hold the lock so that the task can't end before it's registered.
        """
        # The thread is a daemon so that an interrupted `close` doesn't wait. The replicas exit when the service exits.
        threading.Thread(target=self._run, args=(task,), name=task.id, daemon=True).start()

    def _enter(self, task: Task, state: str) -> None:
        """Set an intermediate state unless the task is already being stopped. `state` doesn't include the prefix."""
        with self._lock:
            if not task.stopping.is_set():
                first = state == "RUNNING" and "startTime" not in self._store.get(task.name)
                times = {"startTime": now()} if first else {}
                self._store.update(task.name, state=f"{self.prefix}{state}", **times)

    def _end(self, name: str, state: str, error: dict[str, Any] | None = None) -> None:
        """Set a task's final state and error. `state` doesn't include the prefix.

        The error is None if the state is SUCCEEDED.
        """
        gone = dict.fromkeys(self.transient)
        self._store.update(name, state=f"{self.prefix}{state}", endTime=now(), error=error, **gone)

    def _stop(self, task: Task) -> None:
        """Make `_work` return soon. The caller must hold the lock."""
        task.stopping.set()

    def _run(self, task: Task) -> None:
        state, error = "SUCCEEDED", None
        try:
            self._work(task)
        except ApiError as raised:
            state, error = "FAILED", raised.rpc
        except Exception as raised:  # an internal error must not leave the task running forever
            traceback.print_exception(raised)
            state, error = "FAILED", our_fault(raised).rpc
        with self._lock:  # otherwise `cancel` could overwrite the final state
            if error and task.stopping.is_set():  # the stop explains any failure
                state, error = self._stopped(task.name, task.why)
            self._finish(task, state, error)

    def _stopped(self, name: str, why: str = "") -> tuple[str, dict[str, Any]]:
        """Return the final state and error of a task that was stopped by a client or a service shutdown."""
        resource = self._store.get(name)
        if resource["state"] == f"{self.prefix}CANCELLING":
            # The service's text contains the word CANCELED, which Prefect's worker uses to distinguish a cancellation
            # from a failure. The rest of the text is unknown. Source: prefect-gcp 0.6.22, workers/vertex.py.
            return "CANCELLED", rpc_status("CANCELLED", why or f"CANCELED: the {self.noun} was canceled")
        return "FAILED", rpc_status("UNAVAILABLE", f"{STOPPED}{self._resumes(resource)}")

    def _resumes(self, resource: Resource) -> str:
        """Return a suffix for the STOPPED message if a new task would resume this task's work. Otherwise, return ""."""
        return ""

    def _finish(self, task: Task, state: str, error: dict[str, Any] | None) -> None:
        """End a task and remove it from the unfinished tasks. The caller must hold the lock."""
        self._end(task.name, state, error)
        del self._tasks[task.name]
        self._lock.notify_all()

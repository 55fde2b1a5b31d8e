"""What jobs, tuning jobs and pipelines have in common: each lives in a thread, can be stopped, and ends once."""

import threading
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from vertex_launch.local.api.errors import ApiError, our_fault, rpc_status
from vertex_launch.local.api.store import Resource, Store

STOPPED = rpc_status(
    "UNAVAILABLE", "the local Vertex was stopped while this job had not ended; create it again, and it resumes"
)


@dataclass
class BackgroundTask:
    """One that has not ended."""

    name: str
    stopping: threading.Event = field(default_factory=threading.Event, kw_only=True)

    @property
    def parent(self) -> str:
        return self.name.rsplit("/", 2)[0]

    @property
    def id(self) -> str:
        return self.name.rpartition("/")[2]

    def raise_if_stopping(self) -> None:
        """Raises ApiError CANCELLED."""
        if self.stopping.is_set():
            raise ApiError("CANCELLED", f"{self.name} was cancelled")


L = TypeVar("L", bound=BackgroundTask)


class BackgroundTasks(ABC, Generic[L]):
    """All of one collection; thread-safe. A subclass says what one does in its life."""

    collection: str
    noun: str  # in messages
    prefix: str  # of the states
    ended: frozenset[str]  # the last states

    def __init__(self, store: Store) -> None:
        self._store = store
        self._lock = threading.Condition()  # reentrant; told of every end
        self._running: dict[str, L] = {}
        self._closed = False
        for resource in store.all(self.collection):
            if str(resource.get("state")) not in self.ended:
                self._lose(resource)

    def get(self, name: str) -> Resource:
        """Raises ApiError NOT_FOUND."""
        return self._store.get(name)

    def cancel(self, name: str) -> None:
        """Begin to stop one; raises ApiError NOT_FOUND, or FAILED_PRECONDITION for one that has ended."""
        with self._lock:
            state = self._store.get(name)["state"]
            if state in self.ended:
                kind = f"{self.collection[0].upper()}{self.collection[1:-1]}"  # CustomJob of customJobs
                raise ApiError("FAILED_PRECONDITION", f'The {kind} "{name}" is in state {state} and cannot be canceled')
            self._store.update(name, state=f"{self.prefix}CANCELLING")
            self._stop(self._running[name])

    def delete(self, name: str) -> None:
        """Forget one that has ended; raises ApiError NOT_FOUND or FAILED_PRECONDITION."""
        self._store.delete_ended(name, self.ended)

    def close(self) -> None:
        """Stop all; returns when none is left."""
        with self._lock:
            self._closed = True
            for life in self._running.values():
                self._stop(life)
            self._lock.wait_for(lambda: not self._running)

    @abstractmethod
    def _live(self, life: L) -> None:
        """From its start to its end, in its own thread; raises ApiError unless it succeeds."""

    def _lose(self, resource: Resource) -> None:
        """End what was running when an earlier service ended."""
        self._store.end(resource["name"], f"{self.prefix}FAILED", STOPPED)

    def _begin(self, life: L, resource: Resource) -> Resource:
        """Keep and admit a new one; raises ApiError."""
        with self._lock:
            if self._closed:
                raise ApiError("UNAVAILABLE", "the local Vertex is stopping")
            self._store.create(life.name, resource)
            self._admit(life)
            return self._store.get(life.name)

    def _admit(self, life: L) -> None:
        """Start it, now or later; the lock is held."""
        self._start(life)

    def _start(self, life: L) -> None:
        """Begin with its life; the lock is held, so it does not end before it is known."""
        # A daemon: who interrupts `close`, too, waits for nothing any more; the replicas end with the service.
        threading.Thread(target=self._run, args=(life,), name=life.id, daemon=True).start()
        self._running[life.name] = life

    def _enter(self, life: L, state: str) -> None:
        """Another state on the way, unless it is already to stop."""
        with self._lock:
            if not life.stopping.is_set():
                self._store.enter(life.name, state, state == f"{self.prefix}RUNNING")

    def _stop(self, life: L) -> None:
        """Have `_live` return soon; the lock is held."""
        life.stopping.set()

    def _run(self, life: L) -> None:
        """The thread of one."""
        state, error = self._outcome(life)
        with self._lock:  # or `cancel` could overwrite the end
            if error and life.stopping.is_set():  # whatever went wrong, it was to stop
                cancelled = f"{self.prefix}CANCELLED", rpc_status("CANCELLED", f"the {self.noun} was cancelled")
                state, error = (f"{self.prefix}FAILED", STOPPED) if self._closed else cancelled
            self._store.end(life.name, state, error)
            self._leave(life)

    def _outcome(self, life: L) -> tuple[str, Resource | None]:
        """The last state; also why it failed, if it did."""
        try:
            self._live(life)
        except ApiError as error:
            return f"{self.prefix}FAILED", rpc_status(error.status, error.message)
        except Exception as error:  # it must not run for ever
            return f"{self.prefix}FAILED", our_fault(error)
        return f"{self.prefix}SUCCEEDED", None

    def _leave(self, life: L) -> None:
        """It has ended; the lock is held."""
        del self._running[life.name]
        self._lock.notify_all()

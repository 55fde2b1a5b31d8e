import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from vertex_launch.job.job_resource import Resource
from vertex_launch.local.api.errors import ApiError
from vertex_launch.local.api.store import Store
from vertex_launch.local.jobs.background import STOPPED, BackgroundTask, BackgroundTasks

NAME = "projects/p/locations/l/things/1"
SUCCEEDED, FAILED = ("S_SUCCEEDED", ""), ("S_FAILED", "no data")
CANCELLED, LOST = ("S_CANCELLED", "CANCELED: the thing was canceled"), ("S_FAILED", STOPPED)

End = tuple[str, str]  # the last state, and why
Does = Callable[[BackgroundTask], None]


class Things(BackgroundTasks[BackgroundTask]):
    """Each does what a test says."""

    collection, noun, prefix, ended = "things", "thing", "S_", frozenset(("S_SUCCEEDED", "S_FAILED", "S_CANCELLED"))

    def __init__(self, store: Store, does: Does) -> None:
        super().__init__(store)
        self._does = does

    def create(self) -> Resource:
        return self._begin(BackgroundTask(NAME), {"state": "S_PENDING"})

    def _work(self, task: BackgroundTask) -> None:
        self._does(task)


def succeed(task: BackgroundTask) -> None:
    pass


def fail(task: BackgroundTask) -> None:
    raise ApiError("NOT_FOUND", "no data")


def succeed_when_stopped(task: BackgroundTask) -> None:
    task.stopping.wait(240)


def fail_when_stopped(task: BackgroundTask) -> None:
    task.stopping.wait(240)
    fail(task)


def obey(task: BackgroundTask) -> None:
    task.stopping.wait(240)
    task.raise_if_stopping()


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    store = Store(tmp_path)
    yield store
    store.close()


def end(store: Store, seconds: float = 240) -> End:
    thing = store.wait(NAME, lambda one: one["state"] in Things.ended, seconds)
    return thing["state"], thing.get("error", {}).get("message", "")


@pytest.mark.parametrize(("does", "expected"), [(succeed, SUCCEEDED), (fail, FAILED)])
def test_what_is_left_alone_ends_as_it_does(store: Store, does: Does, expected: End) -> None:
    Things(store, does).create()
    assert end(store) == expected


# Who succeeds all the same has succeeded; who fails was stopped, whatever it says.
STOPS = [(succeed_when_stopped, SUCCEEDED, SUCCEEDED), (fail_when_stopped, CANCELLED, LOST), (obey, CANCELLED, LOST)]


@pytest.mark.parametrize(("does", "cancelled", "closed"), STOPS)
def test_what_is_stopped_says_by_whom(store: Store, does: Does, cancelled: End, closed: End) -> None:
    things = Things(store, does)
    things.create()
    things.cancel(NAME)
    assert end(store) == cancelled
    things.delete(NAME)
    things.create()
    things.close()
    assert end(store, seconds=0) == closed  # `close` has waited for it


def test_what_has_ended_cannot_be_cancelled(store: Store) -> None:
    things = Things(store, succeed)
    things.create()
    assert end(store) == SUCCEEDED
    with pytest.raises(ApiError, match=f'^The Thing "{NAME}" is in state S_SUCCEEDED and cannot be canceled$'):
        things.cancel(NAME)


def test_what_is_being_stopped_may_be_cancelled_again(store: Store) -> None:
    let_go = threading.Event()

    def linger(task: BackgroundTask) -> None:
        let_go.wait(240)
        task.raise_if_stopping()

    things = Things(store, linger)
    things.create()
    for _ in range(2):
        things.cancel(NAME)
        assert things.get(NAME)["state"] == "S_CANCELLING"
    let_go.set()
    assert end(store) == CANCELLED


def test_what_is_closed_takes_nothing_new(store: Store) -> None:
    things = Things(store, succeed)
    things.close()
    with pytest.raises(ApiError, match="the local Vertex is stopping"):
        things.create()
    assert store.all("things") == []


def test_what_an_earlier_service_left_has_failed(store: Store) -> None:
    store.create(NAME, {"state": "S_RUNNING"})
    assert Things(store, succeed).get(NAME)["state"] == "S_FAILED"
    assert end(store) == LOST

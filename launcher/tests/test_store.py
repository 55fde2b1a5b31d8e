import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from launcher.tests.running import DEADLINE, SOURCE, deadline
from vertex_launch.errors import FaultError
from vertex_launch.local.api.errors import ApiError
from vertex_launch.local.api.store import Store, endpoint_of

PARENT = "projects/p/locations/us-central1"
NAME = f"{PARENT}/customJobs/1"


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    store = Store(tmp_path, "http://127.0.0.1:8911")
    yield store
    store.close()


def test_a_resource_outlives_its_store(tmp_path: Path) -> None:
    first = Store(tmp_path)
    first.create(NAME, {"displayName": "ärger"})
    kept = first.update(NAME, state="JOB_STATE_RUNNING")
    first.close()
    second = Store(tmp_path)
    assert second.get(NAME) == kept
    assert second.list(PARENT, "customJobs") == [kept]
    second.close()


def test_the_file_of_a_resource_is_its_name(store: Store, tmp_path: Path) -> None:
    created = store.create(NAME, {"displayName": "one"})
    assert json.loads((tmp_path / f"{NAME}.json").read_text()) == created
    store.delete(NAME)
    assert not (tmp_path / f"{NAME}.json").exists()


def test_a_list_has_one_collection_of_one_place_newest_first(store: Store) -> None:
    for name in (NAME, f"{PARENT}/customJobs/2", f"{PARENT}/models/3", "projects/q/locations/us-central1/customJobs/4"):
        store.create(name, {})
    store.create(f"{PARENT}/customJobs/1/operations/5", {})
    assert [one["name"] for one in store.list(PARENT, "customJobs")] == [f"{PARENT}/customJobs/2", NAME]
    assert len(store.all("customJobs")) == 3


def test_the_order_outlives_the_store(tmp_path: Path) -> None:
    first = Store(tmp_path)
    names = [f"{PARENT}/customJobs/{number}" for number in (10, 9, 100)]
    for name in names:
        first.create(name, {})
    first.close()
    second = Store(tmp_path)
    assert [one["name"] for one in second.list(PARENT, "customJobs")] == names[::-1]
    second.close()


def test_what_was_handed_out_does_not_change(store: Store) -> None:
    before = store.create(NAME, {"state": "a"})
    store.update(NAME, state="b")
    assert before["state"] == "a"
    assert store.update(NAME, state=None).get("state") is None


@pytest.mark.parametrize("id", ["..", "a/../../x", ".hidden", "", "a b", "a\0b", "x" * 200, "%2e%2e"])
def test_an_id_cannot_leave_the_folder(store: Store, tmp_path: Path, id: str) -> None:
    before = sorted(tmp_path.parent.rglob("*"))
    with pytest.raises(ApiError, match="isn't a valid resource name"):
        store.create(f"{PARENT}/customJobs/{id}", {})
    assert sorted(tmp_path.parent.rglob("*")) == before


def test_what_is_not_there_is_not_found(store: Store) -> None:
    for call in (store.get, store.delete, store.update):
        with pytest.raises(ApiError) as error:
            call(NAME)
        assert error.value.as_json()["error"] == {
            "code": 404,
            "message": f"{NAME} does not exist",
            "status": "NOT_FOUND",
        }


def test_ids_are_distinct_and_grow(store: Store) -> None:
    ids = [int(store.new_id()) for _ in range(1000)]
    assert ids == sorted(set(ids))


def test_one_can_wait_for_a_state(store: Store) -> None:
    store.create(NAME, {"state": "a"})
    threading.Timer(0.1, store.update, args=(NAME,), kwargs={"state": "b"}).start()
    assert store.wait(NAME, lambda one: one["state"] == "b", timeout=DEADLINE)["state"] == "b"
    with deadline():
        assert store.wait(NAME, lambda one: one["state"] == "c", timeout=0.1)["state"] == "b"


def second_store(folder: Path) -> str:
    """What another process is told that wants the folder, too."""
    script = "import pathlib, sys; from vertex_launch.local.api.store import Store; Store(pathlib.Path(sys.argv[1]))"
    command = [sys.executable, "-c", script, str(folder)]
    done = subprocess.run(command, cwd=SOURCE, capture_output=True, text=True, timeout=DEADLINE)
    assert "FaultError" in done.stderr
    return done.stderr


def test_a_second_service_is_refused_and_told_where_the_first_is(store: Store, tmp_path: Path) -> None:
    sentence = f"the local Vertex at http://127.0.0.1:8911 (process {os.getpid()}) is using this folder; stop it"
    assert sentence in second_store(tmp_path)
    with pytest.raises(FaultError, match="the local Vertex at"):
        Store(tmp_path)
    assert endpoint_of(tmp_path) == "http://127.0.0.1:8911"


def test_a_folder_that_a_command_holds_is_refused_with_its_process(tmp_path: Path) -> None:
    holder = Store(tmp_path)
    sentence = f"another command (process {os.getpid()}) is using this folder; wait for it, or use --state-dir"
    assert sentence in second_store(tmp_path)
    assert endpoint_of(tmp_path) == ""
    holder.close()


def test_the_folder_is_free_once_the_service_is_gone(tmp_path: Path) -> None:
    Store(tmp_path, "http://127.0.0.1:1").close()
    assert endpoint_of(tmp_path) == ""
    Store(tmp_path).close()


def test_a_file_that_is_no_resource_is_left_alone_and_named(tmp_path: Path) -> None:
    first = Store(tmp_path)
    first.create(NAME, {})
    first.close()
    broken = tmp_path / PARENT / "customJobs" / "2.json"
    broken.write_text("{")
    second = Store(tmp_path)
    assert second.unreadable == [broken]
    assert broken.read_text() == "{"
    assert len(second.list(PARENT, "customJobs")) == 1
    second.close()


def test_rows_go_with_their_resource(store: Store, tmp_path: Path) -> None:
    below = f"{NAME}/operations/5"
    for name in (NAME, below):
        store.create(name, {})
    store.append(below, [{"step": 1}, 2])
    store.append(below, ["drei"])
    assert store.rows(below) == [{"step": 1}, 2, "drei"]
    assert store.rows(NAME) == []
    assert store.size(NAME) == len('\n{"step": 1}\n2\n"drei"')
    store.delete(NAME)
    assert [*tmp_path.rglob("*.jsonl")] == []
    with pytest.raises(ApiError, match="does not exist"):
        store.append(below, [1])

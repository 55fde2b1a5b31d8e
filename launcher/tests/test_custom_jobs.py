"""The life of jobs from within the service's process, where its threads can be counted."""

import contextlib
import json
import os
import random
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from google.cloud.aiplatform_v1.types import CustomJob, HyperparameterTuningJob

from launcher.tests.running import DEADLINE, eventually, processes, until
from launcher.tests.test_packages import source_package
from launcher.tests.vertex import PARENT, SETTINGS, Json, custom_job, script
from vertex_launch import settings
from vertex_launch.job import spec, strict_yaml
from vertex_launch.job.job_resource import Resource
from vertex_launch.job.state_dir import StateDir
from vertex_launch.local.api.errors import ApiError
from vertex_launch.local.jobs.custom_jobs import ENDED
from vertex_launch.local.running import hosts
from vertex_launch.local.running.context import Context, Options
from vertex_launch.local.server import Vertex

SLEEP = script("import time; time.sleep(600)")
FLEX = {"strategy": "FLEX_START", "maxWaitDuration": "600s", "timeout": "60s"}
L4 = {"machineType": "g2-standard-8", "acceleratorType": "NVIDIA_L4", "acceleratorCount": 1}


@pytest.fixture
def vertex(tmp_path: Path) -> Iterator[Vertex]:
    started = start(tmp_path)
    yield started
    started.close()


def start(folder: Path) -> Vertex:
    (folder / "vertex.toml").write_text(SETTINGS)
    ours = settings.load(folder / "vertex.toml")
    context = Context(StateDir(folder / ".vertex"), ours, os.environ, Options(capacity=4, grace=0.2))
    return Vertex(context, "http://127.0.0.1:1")


def message(body: Json, kind: Any = CustomJob) -> Any:
    return spec.read(strict_yaml.from_json(json.dumps(body)), kind)


def create(vertex: Vertex, body: Json) -> str:
    return str(vertex.jobs.create(PARENT, message(body))["name"])


def ended(vertex: Vertex, name: str) -> Resource:
    resource = vertex.store.wait(name, lambda one: one["state"] in ENDED, DEADLINE)
    assert resource["state"] in ENDED, resource
    return resource


def tuning(name: str = "tuning") -> HyperparameterTuningJob:
    x = {"parameterId": "x", "doubleValueSpec": {"minValue": 0, "maxValue": 1}}
    study = {"metrics": [{"metricId": "loss", "goal": "MINIMIZE"}], "parameters": [x]}
    counts = {"maxTrialCount": 4, "parallelTrialCount": 2}
    body = {"displayName": name, "studySpec": study, **counts, "trialJobSpec": custom_job(*SLEEP)["jobSpec"]}
    return message(body, HyperparameterTuningJob)  # type: ignore[no-any-return]


def test_whoever_cancels_a_job_at_its_end_cannot_undo_the_end(vertex: Vertex) -> None:
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)  # seconds; so that threads meet where they seldom do

    def cancel_often(name: str) -> None:
        vertex.store.wait(name, lambda one: one["state"] == "JOB_STATE_RUNNING" or one["state"] in ENDED, DEADLINE)
        time.sleep(random.uniform(0, 0.2))
        for _ in range(50):
            with contextlib.suppress(ApiError):  # it has ended
                vertex.jobs.cancel(name)

    try:
        for _ in range(8):
            names = [create(vertex, custom_job("true")) for _ in range(4)]
            threads = [threading.Thread(target=cancel_often, args=(name,)) for name in names]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(DEADLINE)
            states = {ended(vertex, name)["state"] for name in names}
            assert states <= {"JOB_STATE_SUCCEEDED", "JOB_STATE_CANCELLED"}
    finally:
        sys.setswitchinterval(interval)


def test_jobs_leave_neither_threads_nor_open_files(vertex: Vertex) -> None:
    threads, files = threading.active_count(), len(os.listdir("/dev/fd"))
    for name in [create(vertex, custom_job("true", workers=1)) for _ in range(10)]:
        ended(vertex, name)
    # Both at once: a thread of the test before may have been counted, in whose place one with its files is left.
    assert eventually(lambda: threading.active_count() <= threads and len(os.listdir("/dev/fd")) <= files)


def test_a_job_that_leaves_the_queue_no_longer_waits_to_expire(vertex: Vertex) -> None:
    first = create(vertex, custom_job(*SLEEP, workers=3))
    body = custom_job(*SLEEP, scheduling=FLEX)
    body["jobSpec"]["workerPoolSpecs"][0]["machineSpec"] = L4
    queued = [create(vertex, body) for _ in range(3)]
    timers = [thread for thread in threading.enumerate() if isinstance(thread, threading.Timer)]
    assert len(timers) == 3
    vertex.jobs.cancel(queued[0])
    vertex.jobs.cancel(first)
    for name in queued[1:]:
        vertex.store.wait(name, lambda one: one["state"] == "JOB_STATE_RUNNING", DEADLINE)
    assert eventually(lambda: not any(timer.is_alive() for timer in timers))


def test_a_job_whose_folder_cannot_be_made_fails_and_gives_its_place_free(vertex: Vertex) -> None:
    (vertex.store.state_dir.folder / "jobs").write_text("no folder")
    failed = ended(vertex, create(vertex, custom_job("true", workers=3)))
    assert failed["error"]["code"] == 13
    assert "the local Vertex failed: " in failed["error"]["message"]
    (vertex.store.state_dir.folder / "jobs").unlink()
    assert ended(vertex, create(vertex, custom_job("true", workers=3)))["state"] == "JOB_STATE_SUCCEEDED"


def test_a_job_ends_although_its_end_cannot_be_written(vertex: Vertex, tmp_path: Path) -> None:
    name = create(vertex, custom_job(*script(until(tmp_path / ".vertex/go"))))
    vertex.store.wait(name, lambda one: one["state"] == "JOB_STATE_RUNNING", DEADLINE)
    folder = tmp_path / ".vertex" / PARENT / "customJobs"
    folder.rename(tmp_path / "away")
    folder.write_text("no folder")
    (tmp_path / ".vertex/go").touch()
    assert ended(vertex, name)["state"] == "JOB_STATE_SUCCEEDED"
    folder.unlink()


def test_what_installs_for_ever_can_be_cancelled(vertex: Vertex) -> None:
    mark = f"mark-{time.time_ns()}"
    address = vertex.store.state_dir.buckets / "b/slow.zip"
    setup = f"import subprocess; subprocess.run(['python', '-c', 'import time; time.sleep(600)', '{mark}'])"
    source_package(address, setup__py=setup)
    body = custom_job()
    package = {"executorImageUri": "image", "packageUris": ["gs://b/slow.zip"], "pythonModule": "slow"}
    del body["jobSpec"]["workerPoolSpecs"][0]["containerSpec"]
    body["jobSpec"]["workerPoolSpecs"][0]["pythonPackageSpec"] = package
    name = create(vertex, body)
    assert eventually(lambda: processes(mark) != [])
    vertex.jobs.cancel(name)
    assert ended(vertex, name)["state"] == "JOB_STATE_CANCELLED"
    assert processes(mark) == []


def test_a_tuning_job_with_the_longest_name_has_trials_and_loses_them_with_the_service(tmp_path: Path) -> None:
    killed = start(tmp_path)
    name = killed.tunings.create(PARENT, tuning("n" * 128))["name"]
    shown = killed.store.wait(name, lambda one: len(one.get("trials", ())) == 2, DEADLINE)
    assert "error" not in shown
    assert len(killed.store.get(shown["trials"][1]["customJob"])["displayName"]) == 128
    file = tmp_path / f".vertex/{name}.json"
    left = file.read_text()
    killed.close()
    file.write_text(left)  # as a service that was killed leaves it
    again = start(tmp_path)
    lost = again.tunings.get(name)
    again.close()
    assert lost["state"] == "JOB_STATE_FAILED"
    assert [trial["state"] for trial in lost["trials"]] == ["INFEASIBLE", "INFEASIBLE"]
    assert all("was stopped" in trial["infeasibleReason"] for trial in lost["trials"])


def test_a_trial_whose_job_is_deleted_has_failed_and_the_others_go_on(vertex: Vertex) -> None:
    name = vertex.tunings.create(PARENT, tuning())["name"]
    shown = vertex.store.wait(name, lambda one: len(one.get("trials", ())) == 2, DEADLINE)
    job = shown["trials"][0]["customJob"]
    vertex.jobs.cancel(job)
    ended(vertex, job)
    vertex.jobs.delete(job)
    shown = vertex.store.wait(name, lambda one: len(one["trials"]) == 3, DEADLINE)
    assert [trial["state"] for trial in shown["trials"]] == ["INFEASIBLE", "ACTIVE", "ACTIVE"]
    vertex.tunings.cancel(name)
    assert ended(vertex, name)["state"] == "JOB_STATE_CANCELLED"


def test_jobs_that_start_together_do_not_get_the_same_ports() -> None:
    addresses = [address for _ in range(20) for address in hosts.free_addresses(64)]
    assert len(set(addresses)) == len(addresses)

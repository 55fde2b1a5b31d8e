"""What `submit --print` says, run as it is, sends what `submit` sends."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from launcher.tests.running import DEADLINE, JOBS, SOURCE
from launcher.tests.vertex import Json, Service, service

SECONDS = 600  # gcloud takes one or two; its first start compiles itself, and others may need the machine, too
LABELS = ("--label", "team=vision", "--label", "cost-center=4711")
RUNS = {"gcloud": ["bash", "-c"], "curl": ["bash", "-c"], "python": [sys.executable, "-c"]}


@pytest.fixture(scope="module")
def vertex(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    flags = ("--grace-seconds", "1", "--capacity", "64")
    with service(tmp_path_factory.mktemp("vertex"), *flags) as running:
        yield running


def launch(vertex: Service, project: Path, *words: str) -> str:
    """What `submit` prints of a job file of the project."""
    environ = os.environ | {"PYTHONPATH": str(SOURCE), "VERTEX_ENDPOINT": vertex.endpoint}
    command = [sys.executable, "-m", "vertex_launch", "submit", *words]
    done = subprocess.run(command, cwd=project, env=environ, capture_output=True, text=True, timeout=DEADLINE)
    assert done.returncode == 0, done.stderr
    return done.stdout


def newest(vertex: Service, collection: str) -> Json:
    _, answer = vertex.call("GET", f"/v1/projects/my-project/locations/us-central1/{collection}")
    found: Json = answer[collection][0]
    written = ("name", "createTime", "updateTime", "startTime", "endTime", "state", "error", "trials")
    return {key: value for key, value in found.items() if key not in written}


def cancel(vertex: Service) -> None:
    """End what was sent: there is no framework here, and no package."""
    for collection in ("customJobs", "hyperparameterTuningJobs"):
        _, answer = vertex.call("GET", f"/v1/projects/my-project/locations/us-central1/{collection}")
        for job in answer.get(collection, ()):
            vertex.call("POST", f"/v1/{job['name']}:cancel", {})
            vertex.wait(job["name"])


def once(name: str) -> object:
    """One of them at each change, the others in the proofs."""
    return pytest.param(name, marks=() if name == "workers.yaml" else pytest.mark.proof)


@pytest.mark.parametrize("name", [once(path.name) for path in JOBS])
def test_each_client_sends_the_same(vertex: Service, project: Path, name: str) -> None:
    (vertex.state_dir / "gcs/my-project-training").mkdir(exist_ok=True)
    collection = "hyperparameterTuningJobs" if name == "tuning.yaml" else "customJobs"
    sent = []
    for client, run in RUNS.items():
        if shutil.which(run[0]) is None or (client == "gcloud" and not shutil.which("gcloud")):
            continue
        if client == "gcloud" and name == "evaluator.yaml":
            continue  # the one with an empty pool
        text = launch(vertex, project, f"jobs/{name}", *LABELS, "--print", client)
        environ = os.environ | {"CLOUDSDK_CONFIG": str(vertex.folder / "gcloud"), "CLOUDSDK_CORE_DISABLE_PROMPTS": "1"}
        done = subprocess.run([*run, text], cwd=project, env=environ, capture_output=True, text=True, timeout=SECONDS)
        assert done.returncode == 0, done.stderr
        sent.append(newest(vertex, collection))
        cancel(vertex)
    launch(vertex, project, f"jobs/{name}", *LABELS, "--yes", "--no-follow")
    ours = newest(vertex, collection)
    cancel(vertex)
    for one in (*sent, ours):
        del one["labels"]["submission"]  # of each request its own
    assert len(sent) > 1
    assert {"team": "vision", "cost-center": "4711"}.items() <= ours["labels"].items()
    assert all(one == ours for one in sent)


def test_gcloud_is_not_said_to_take_an_empty_pool(vertex: Service, project: Path) -> None:
    environ = os.environ | {"PYTHONPATH": str(SOURCE), "VERTEX_ENDPOINT": vertex.endpoint}
    command = [sys.executable, "-m", "vertex_launch", "submit", "jobs/evaluator.yaml", "--print", "gcloud"]
    done = subprocess.run(command, cwd=project, env=environ, capture_output=True, text=True, timeout=DEADLINE)
    assert (done.returncode, done.stdout) == (1, "")
    assert (
        "jobs/evaluator.yaml: gcloud rejects the empty pool, although the service accepts it; use --print curl"
        in done.stderr
    )

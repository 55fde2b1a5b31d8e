"""The real gcloud against the local Vertex, with what the service prints for it."""

import json
import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from launcher.tests.running import JOBS
from launcher.tests.vertex import BY_ID, PARENT, Json, Service, custom_job, script, service

NEEDED = pytest.mark.skipif(not shutil.which("gcloud"), reason="gcloud is not installed")
pytestmark = NEEDED

# tuning.yaml is another resource; an empty pool, as in evaluator.yaml, gcloud takes as a flag only.
CUSTOM_JOBS = [path.name for path in JOBS if path.stem not in ("tuning", "evaluator")]
SECONDS = 600  # gcloud takes one or two; its first start compiles itself, and others may need the machine, too


@pytest.fixture(scope="module")
def vertex(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with service(tmp_path_factory.mktemp("vertex"), "--grace-seconds", "1", "--capacity", "64") as running:
        yield running


def gcloud(vertex: Service, *words: str) -> "subprocess.CompletedProcess[str]":
    environ = os.environ | {
        "CLOUDSDK_API_ENDPOINT_OVERRIDES_AIPLATFORM": f"{vertex.endpoint}/",
        "CLOUDSDK_API_ENDPOINT_OVERRIDES_LOGGING": f"{vertex.endpoint}/",
        "CLOUDSDK_AUTH_DISABLE_CREDENTIALS": "true",
        "CLOUDSDK_CORE_PROJECT": "p",
        # Nothing of the person's own gcloud, and no question asked.
        "CLOUDSDK_CONFIG": str(vertex.folder / "gcloud"),
        "CLOUDSDK_CORE_DISABLE_PROMPTS": "1",
        "CLOUDSDK_CORE_DISABLE_USAGE_REPORTING": "true",
        "CLOUDSDK_COMPONENT_MANAGER_DISABLE_UPDATE_CHECK": "true",
    }
    command = ["gcloud", "ai", *words, "--region=us-central1"]
    return subprocess.run(command, env=environ, cwd=vertex.folder, capture_output=True, text=True, timeout=SECONDS)


def answer(vertex: Service, *words: str) -> Any:
    done = gcloud(vertex, *words, "--format=json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_the_lines_that_the_service_prints_are_all_it_takes(vertex: Service) -> None:
    lines = (vertex.folder / "service.log").read_text().splitlines()
    exports = [line for line in lines if line.startswith("  export ")]
    upload = "echo hello > x && gcloud storage cp x gs://b/x && cat .vertex/gcs/b/x"
    script = "\n".join([*exports, "gcloud ai custom-jobs list --region=us-central1 --format=json", upload])
    environ = os.environ | {"CLOUDSDK_CONFIG": str(vertex.folder / "gcloud"), "CLOUDSDK_CORE_DISABLE_PROMPTS": "1"}
    command = ["bash", "-ec", script]
    done = subprocess.run(command, env=environ, cwd=vertex.folder, capture_output=True, text=True, timeout=SECONDS)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("[")
    assert done.stdout.endswith("hello\n")


def config(folder: Path, spec: Json) -> str:
    path = folder / "job.yaml"
    path.write_text(yaml.safe_dump(spec))
    return f"--config={path}"


def test_a_job_is_created_listed_described_and_its_log_is_shown(vertex: Service, tmp_path: Path) -> None:
    spec = custom_job(*script("print('a line of the chief')"))["jobSpec"]
    created = answer(vertex, "custom-jobs", "create", "--display-name=ours", config(tmp_path, spec))
    vertex.wait(created["name"], "SUCCEEDED")
    job_id = created["name"].rpartition("/")[2]
    assert answer(vertex, "custom-jobs", "describe", job_id)["state"] == "JOB_STATE_SUCCEEDED"
    listed = answer(vertex, "custom-jobs", "list", "--filter=displayName=ours")
    assert [job["name"] for job in listed] == [created["name"]]
    # It looks a few more times before it ends.
    shown = gcloud(vertex, "custom-jobs", "stream-logs", job_id, "--polling-interval=1")
    assert "a line of the chief" in shown.stdout + shown.stderr


def cancel(vertex: Service, name: str) -> None:
    """Cancel a job, unless it has failed: there is no framework here, and no package."""
    done = gcloud(vertex, "custom-jobs", "cancel", name.rpartition("/")[2])
    assert done.returncode == 0 or "JOB_STATE_FAILED and cannot be canceled" in done.stderr, done.stderr
    vertex.wait(name, "CANCELLED", "FAILED")


def once(name: str) -> Any:
    """One of them shows it each time, the others in the proofs."""
    return pytest.param(name, marks=() if name == "workers.yaml" else pytest.mark.proof)


@pytest.mark.parametrize("name", [once(name) for name in CUSTOM_JOBS])
def test_gcloud_takes_the_job_files_as_they_are(vertex: Service, project: Path, name: str) -> None:
    job = project / "jobs" / name
    created = answer(vertex, "custom-jobs", "create", f"--display-name={job.name}", f"--config={job}")
    wanted = yaml.safe_load(job.read_text())["workerPoolSpecs"]
    pools = created["jobSpec"]["workerPoolSpecs"]
    for pool, one in zip(pools, wanted, strict=True):
        (task,) = {"containerSpec", "pythonPackageSpec"} & one.keys()
        assert pool[task] == one[task]
    cancel(vertex, created["name"])


@pytest.mark.proof
def test_a_job_with_an_empty_pool_is_taken_with_its_pools_as_flags(vertex: Service, project: Path) -> None:
    job = project / "jobs/evaluator.yaml"
    create = ("custom-jobs", "create", "--display-name=evaluator", f"--config={job}")
    refused = gcloud(vertex, *create)
    assert refused.returncode == 1
    assert "Exactly one of fields [pythonPackageSpec, containerSpec] is required" in refused.stderr

    spec = yaml.safe_load(job.read_text())
    container = spec["workerPoolSpecs"][0]["containerSpec"]
    words = [f"--{key}={','.join(container[key])}" for key in ("command", "args")]
    created = answer(vertex, *create, *(f"--worker-pool-spec={flag(pool)}" for pool in spec["workerPoolSpecs"]), *words)
    pools = [{**pool, "replicaCount": str(pool["replicaCount"])} if pool else {} for pool in spec["workerPoolSpecs"]]
    for pool in filter(None, pools):
        pool.pop("diskSpec", None)  # no flag; what the file says is the default
        pool["containerSpec"] |= {key: container[key] for key in ("command", "args")}  # one --command for all pools
    assert created["jobSpec"] == spec | {"workerPoolSpecs": pools}
    cancel(vertex, created["name"])


def flag(pool: Json) -> str:
    """A pool as gcloud takes it on its command line."""
    if not pool:
        return ""
    machine, image = pool["machineSpec"], pool["containerSpec"]["imageUri"]
    gpus = f"accelerator-type={machine['acceleratorType']},accelerator-count={machine['acceleratorCount']}"
    count = pool["replicaCount"]
    return f"machine-type={machine['machineType']},{gpus},replica-count={count},container-image-uri={image}"


def test_pools_can_be_given_as_flags(vertex: Service) -> None:
    image = "container-image-uri=gcr.io/any/image:1"
    gpus = "accelerator-type=NVIDIA_TESLA_V100,accelerator-count=8"
    reducer = "us-docker.pkg.dev/vertex-ai-restricted/training/reductionserver:latest"
    created = answer(
        vertex,
        *("custom-jobs", "create", "--display-name=flags"),
        f"--worker-pool-spec=machine-type=n1-highmem-96,replica-count=1,{gpus},{image}",
        f"--worker-pool-spec=machine-type=n1-highmem-96,replica-count=1,{gpus},{image}",
        f"--worker-pool-spec=machine-type=n1-highcpu-16,replica-count=7,container-image-uri={reducer}",
    )
    assert [pool["replicaCount"] for pool in created["jobSpec"]["workerPoolSpecs"]] == ["1", "1", "7"]
    # No command, and the image is none that vertex.toml knows: the job says so.
    job = vertex.wait(created["name"], "FAILED")
    assert "[commands]" in job["error"]["message"]


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        pytest.param({"workerPoolSpecs": [], "shedulin": {}}, ["shedulin", "scheduling"], marks=pytest.mark.proof),
        (custom_job("true", scheduling={"strategy": "CHEAP"})["jobSpec"], ["scheduling.strategy", "CHEAP"]),
        pytest.param({"workerPoolSpecs": []}, ["workerPoolSpecs[0]", "missing"], marks=pytest.mark.proof),
    ],
)
def test_what_the_service_refuses_is_shown_with_its_place(
    vertex: Service, tmp_path: Path, spec: Json, words: Sequence[str]
) -> None:
    done = gcloud(vertex, "custom-jobs", "create", "--display-name=wrong", config(tmp_path, spec))
    assert done.returncode == 1
    assert all(word in done.stderr for word in words), done.stderr


@pytest.mark.proof
def test_the_log_of_a_tuning_job_has_the_lines_of_its_trials(vertex: Service, tmp_path: Path) -> None:
    study = {
        "metrics": [{"metricId": "loss"}],
        "parameters": [{"parameterId": "size", "discreteValueSpec": {"values": [1, 2]}}],
    }
    spec = {
        "studySpec": study | {"algorithm": "GRID_SEARCH"},
        **{"maxTrialCount": 2, "parallelTrialCount": 2},
        "trialJobSpec": custom_job(*script("import sys; print('this trial has', sys.argv[1])"))["jobSpec"],
    }
    created = answer(vertex, "hp-tuning-jobs", "create", "--display-name=logs", config(tmp_path, spec))
    vertex.wait(created["name"])
    shown = gcloud(vertex, "hp-tuning-jobs", "stream-logs", created["name"].rpartition("/")[2], "--polling-interval=1")
    assert "this trial has --size=1" in shown.stdout
    assert "this trial has --size=2" in shown.stdout


@pytest.mark.proof
def test_a_tuning_job_is_created_listed_described_and_cancelled(vertex: Service, project: Path) -> None:
    document = yaml.safe_load((project / "jobs/tuning.yaml").read_text())
    for pool in document["trialJobSpec"]["workerPoolSpecs"]:  # there is no trainer here
        pool["containerSpec"] |= {"command": [*script("import time; time.sleep(1000)")], "args": []}
    job = project / "sleeping.yaml"
    job.write_text(yaml.safe_dump(document))
    created = answer(vertex, "hp-tuning-jobs", "create", "--display-name=tuning", f"--config={job}")
    job_id = created["name"].rpartition("/")[2]
    vertex.wait(created["name"], "RUNNING")
    assert created["name"] in [job["name"] for job in answer(vertex, "hp-tuning-jobs", "list")]
    assert answer(vertex, "hp-tuning-jobs", "describe", job_id)["displayName"] == "tuning"
    assert gcloud(vertex, "hp-tuning-jobs", "cancel", job_id).returncode == 0
    vertex.wait(created["name"], "CANCELLED")
    again = gcloud(vertex, "hp-tuning-jobs", "cancel", job_id)
    assert again.returncode == 1
    name = created["name"].replace(PARENT, BY_ID)
    assert f'The HyperparameterTuningJob "{name}" is in state JOB_STATE_CANCELLED and cannot' in again.stderr

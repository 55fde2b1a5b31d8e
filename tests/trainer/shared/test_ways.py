"""One job, started in every way and disturbed on its way: always the same numbers. It trains for real."""

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from google.auth.credentials import AnonymousCredentials
from google.cloud.aiplatform_v1 import JobServiceClient
from google.cloud.aiplatform_v1.types import CustomJob

from launcher.tests import test_gcloud as gcloud
from launcher.tests.vertex import ENDED, PARENT, Json, Service, service
from tests import training
from tests.training import DEADLINE, FLAGS, PROJECT, eventually
from trainer.config import Config, learning_rate

pytestmark = pytest.mark.proof

FIGURES = ("train/loss", "train/accuracy", "heldout/loss", "heldout/accuracy")
TOLERANCE = 1e-6  # of losses that were summed in another order
TRIAL_STEPS = 20

Figures = dict[tuple[int, str], float]  # by step and name


@pytest.fixture(scope="module")
def vertex(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    here = f'[env]\nPYTHONPATH = "{PROJECT}"\n'  # where the replicas find the trainer
    with service(tmp_path_factory.mktemp("vertex"), "--grace-seconds", "1", settings=here) as running:
        yield running


@pytest.fixture(scope="module")
def unbroken(vertex: Service) -> Figures:
    """What `vertex-launch run` makes of the job, undisturbed."""
    (vertex.folder / "job.yaml").write_text(yaml.safe_dump(spec("by-launch-run")))
    shown = launch(vertex, "run", "job.yaml")
    (logs,) = re.findall(r"^logs: +(\S+)$", shown, re.MULTILINE)
    found = figures(reports(vertex.folder / logs))
    assert {step for step, _ in found} == set(range(1, 201))
    return found


def spec(output: str, **scheduling: Any) -> Json:
    """A CustomJobSpec of a chief and a worker that train for 200 steps."""
    flags = [*FLAGS, "--steps", "200", "--checkpoint-every", "20"]
    job = training.job(2) | {"baseOutputDirectory": {"outputUriPrefix": f"gs://b/{output}"}, "scheduling": scheduling}
    return with_flags(job, flags)


def with_flags(job: Json, flags: Sequence[str]) -> Json:
    """The job with these flags of the trainer and no others."""
    for pool in job["workerPoolSpecs"]:
        pool["containerSpec"]["args"] = [*flags]
    return job


def launch(vertex: Service, *words: str) -> str:
    """What `python -m vertex_launch` shows where the service works."""
    environ = os.environ | {"PYTHONPATH": str(PROJECT)}
    command = [sys.executable, "-m", "vertex_launch", *words]
    done = subprocess.run(command, cwd=vertex.folder, env=environ, capture_output=True, text=True, timeout=DEADLINE)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def reports(logs: Path) -> list[Json]:
    """The JSON lines of a chief, over all its starts."""
    lines = (logs / "workerpool0-0.log").read_text().splitlines()
    return [json.loads(line) for line in lines if line.startswith("{")]


def logs(vertex: Service, name: str) -> Path:
    return vertex.state_dir / "jobs" / name.rpartition("/")[2]


def figures(told: Sequence[Mapping[str, Any]]) -> Figures:
    """All that was told but times and speeds; of a step that was done twice, the second."""
    return {(report["step"], name): report[name] for report in told for name in FIGURES if name in report}


def same(expected: Figures) -> Any:
    return pytest.approx(expected, abs=TOLERANCE, rel=0)


def states_until_the_end(vertex: Service, name: str) -> list[str]:
    """The states of a job that runs now, each as often as it comes."""
    states, deadline = ["RUNNING"], time.monotonic() + DEADLINE
    while states[-1] not in ENDED:
        assert time.monotonic() < deadline, states
        time.sleep(0.02)
        state = vertex.get(name)["state"].removeprefix("JOB_STATE_")
        states += [state] if state != states[-1] else []
    return states


def test_the_sdk_trains_to_the_numbers_of_run(vertex: Service, unbroken: Figures) -> None:
    anonymous = AnonymousCredentials()
    client = JobServiceClient(transport="rest", client_options={"api_endpoint": vertex.endpoint}, credentials=anonymous)
    job = CustomJob.from_json(json.dumps({"displayName": "by-sdk", "jobSpec": spec("by-sdk")}))
    created = client.create_custom_job(parent=PARENT, custom_job=job)
    vertex.wait(created.name, "SUCCEEDED", seconds=DEADLINE)
    assert figures(reports(logs(vertex, created.name))) == same(unbroken)
    assert (vertex.state_dir / "gcs/b/by-sdk/model").is_dir()


@gcloud.NEEDED
def test_gcloud_trains_to_the_numbers_of_run(vertex: Service, unbroken: Figures, tmp_path: Path) -> None:
    config = gcloud.config(tmp_path, spec("by-gcloud"))
    created = gcloud.answer(vertex, "custom-jobs", "create", "--display-name=by-gcloud", config)
    vertex.wait(created["name"], "SUCCEEDED", seconds=DEADLINE)
    assert figures(reports(logs(vertex, created["name"]))) == same(unbroken)
    assert (vertex.state_dir / "gcs/b/by-gcloud/model").is_dir()


def test_a_job_that_loses_a_machine_goes_on_from_its_checkpoint(vertex: Service, unbroken: Figures) -> None:
    name = vertex.create({"displayName": "preempted", "jobSpec": spec("preempted", strategy="SPOT")})
    committed = vertex.state_dir / "gcs/b/preempted/checkpoints/step-000000020/committed.json"
    assert eventually(committed.exists, seconds=DEADLINE)
    # So that the job has not ended before the fault comes; and the machine's successor does not come at once.
    for control, seconds in (("freeze", 600), ("late", 5)):
        disturb = {"replica": "workerpool1-0", "seconds": seconds}
        assert vertex.call("POST", f"/control/{name.rpartition('/')[2]}/{control}", disturb) == (200, {})
    launch(vertex, "emulate", "preempt", name, "workerpool1-0")
    assert states_until_the_end(vertex, name) == ["RUNNING", "PENDING", "RUNNING", "SUCCEEDED"]

    told = reports(logs(vertex, name))
    assert [report["message"] for report in told if report["message"].startswith("resumed at step")]
    assert figures(told) == same(unbroken)


def test_a_job_whose_machine_is_preempted_loses_no_step(tmp_path: Path) -> None:
    flags = [*FLAGS, "--steps", "400", "--checkpoint-every", "400"]
    job = {"displayName": "saved", "jobSpec": with_flags(spec("saved", strategy="SPOT"), flags)}
    here = f'[env]\nPYTHONPATH = "{PROJECT}"\n'
    with service(tmp_path, "--grace-seconds", "60", settings=here) as patient:
        folder = logs(patient, name := patient.create(job))
        log = folder / "workerpool0-0.log"
        assert eventually(log.exists)
        assert eventually(lambda: "step 30/" in log.read_text())
        preempt = f"/control/{name.rpartition('/')[2]}/preempt"
        assert patient.call("POST", preempt, {"replica": "workerpool1-0"}) == (200, {})
        patient.wait(name, "SUCCEEDED", seconds=DEADLINE)
        told = reports(folder)
    messages = "\n".join(report["message"] for report in told)
    (saved,) = re.findall(r"saved step (\d+), because workerp", messages)
    assert any(report["message"].startswith(f"resumed at step {saved} from ") for report in told)
    assert [report["step"] for report in told if "train/loss" in report] == [*range(1, 401)]


@pytest.fixture(scope="module")
def tuning(vertex: Service) -> Json:
    """jobs/tuning.yaml, made small: two trials of a chief and a worker, all to their end, and what they came to."""
    job: Json = yaml.safe_load((PROJECT / "jobs/tuning.yaml").read_text())
    flags = ["--steps", str(TRIAL_STEPS), "--global-batch", "24", "--log-every", "1", "--evaluate-every", "10"]
    with_flags(job["trialJobSpec"], flags)
    del job["studySpec"]["medianAutomatedStoppingSpec"]
    name = vertex.create(job | {"maxTrialCount": 2, "parallelTrialCount": 2}, "hyperparameterTuningJobs")
    return vertex.wait(name, "SUCCEEDED", seconds=DEADLINE)


def losses(vertex: Service, trial: Json) -> list[float]:
    """What the trial's chief has reported of the held-out samples."""
    told = reports(logs(vertex, trial["customJob"]))
    return [report["heldout/loss"] for report in told if "heldout/loss" in report]


def test_a_trial_counts_with_the_best_that_its_chief_reported(vertex: Service, tuning: Json) -> None:
    assert [trial["state"] for trial in tuning["trials"]] == ["SUCCEEDED"] * 2
    for trial in tuning["trials"]:
        (metric,) = trial["finalMeasurement"]["metrics"]
        assert len(losses(vertex, trial)) == TRIAL_STEPS / 10
        assert metric == {"metricId": "loss", "value": min(losses(vertex, trial))}
        # A worker measures the same, but does not report it.
        assert [path.name for path in logs(vertex, trial["customJob"]).glob("*.metrics")] == ["workerpool0-0.metrics"]


def test_the_values_of_a_trial_reach_the_trainer(vertex: Service, tuning: Json) -> None:
    for trial in tuning["trials"]:
        values = {one["parameterId"]: one["value"] for one in trial["parameters"]}
        assert values.keys() == {"learning_rate", "weight_decay", "warmup"}
        expected = Config(steps=TRIAL_STEPS, learning_rate=values["learning_rate"], warmup=values["warmup"])
        rates = [report.get("train/learning_rate") for report in reports(logs(vertex, trial["customJob"]))]
        assert [rate for rate in rates if rate] == [
            pytest.approx(learning_rate(expected, step)) for step in range(TRIAL_STEPS)
        ]


def test_each_trial_has_a_folder_of_its_own(vertex: Service, tuning: Json) -> None:
    prefix = tuning["trialJobSpec"]["baseOutputDirectory"]["outputUriPrefix"].removeprefix("gs://")
    folders = sorted((vertex.state_dir / "gcs" / prefix).iterdir())
    assert [folder.name for folder in folders] == ["1", "2"]
    for folder in folders:
        assert {path.name for path in folder.iterdir()} == {"checkpoints", "logs", "model"}

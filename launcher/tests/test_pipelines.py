"""Training pipelines from their creation to their model, with jobs that run; messages as the SDK sends them."""

import json
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from google.cloud.aiplatform import schema
from google.cloud.aiplatform_v1.types import CustomJobSpec, Dataset, TrainingPipeline
from google.protobuf import json_format  # type: ignore[import-untyped, unused-ignore]

from launcher.tests.running import deadline
from vertex_launch.job.job_resource import Resource
from vertex_launch.job.state_dir import StateDir
from vertex_launch.local.api.errors import ApiError
from vertex_launch.local.api.store import Store
from vertex_launch.local.jobs.custom_jobs import Jobs
from vertex_launch.local.jobs.pipelines import ENDED, Pipelines, read_inputs
from vertex_launch.local.jobs.tuning import Tunings
from vertex_launch.local.registry.datasets import Datasets
from vertex_launch.local.registry.models import Models
from vertex_launch.local.running.context import Context
from vertex_launch.settings import Settings

PARENT = "projects/p/locations/us-central1"
SECONDS = 240.0
SETTINGS = Settings("p", "us-central1", "b", "image")
SAVE = """
import os, pathlib, sys
model, data = (word.partition("=")[2] for word in sys.argv[1:])
folder = pathlib.Path(os.environ["GCS_MOUNT"], model.removeprefix("gs://"))
folder.mkdir(parents=True)
(folder / "weights").write_text(data if data.startswith("gs://") else "no data")
"""
# As Google's samples hand over what the service sets.
ARGUMENTS = ["--model_dir=$(AIP_MODEL_DIR)", "--data=$(AIP_TRAINING_DATA_URI)"]
WAIT = "import time; time.sleep(600)"
MODEL = {"display_name": "digits", "container_spec": {"image_uri": "server"}, "version_aliases": ["default"]}


@dataclass(frozen=True)
class Service:
    """What a pipeline needs, and the pipelines."""

    store: Store
    state_dir: StateDir
    jobs: Jobs
    datasets: Datasets
    models: Models
    pipelines: Pipelines

    def close(self) -> None:
        self.pipelines.close()
        self.jobs.close()
        self.store.close()

    def ended(self, name: str) -> Resource:
        return self.reached(name, lambda pipeline: pipeline["state"] in ENDED)

    def reached(self, name: str, done: Callable[[Resource], bool]) -> Resource:
        resource = self.store.wait(name, done, SECONDS)
        assert done(resource), f"after {SECONDS:g} s still {resource}"
        return resource


def start(folder: Path) -> Service:
    state_dir = StateDir(folder / ".vertex")
    store = Store(state_dir.folder)
    (state_dir.buckets / "b").mkdir(parents=True, exist_ok=True)
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    jobs = Jobs(store, Context(state_dir, SETTINGS, {**os.environ, "PATH": path}))
    datasets, models = Datasets(store), Models(store)
    pipelines = Pipelines(store, jobs, Tunings(store, jobs), models)
    return Service(store, state_dir, jobs, datasets, models, pipelines)


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    ours = start(tmp_path)
    yield ours
    ours.close()


def inputs(script: str, arguments: list[str] | None = None, **more: Any) -> dict[str, Any]:
    """As the SDK fills the free form: keys of both kinds, floats, nulls and numbers for enums."""
    machine = {"machine_type": "n1-standard-4", "accelerator_type": 5.0, "accelerator_count": 1.0}
    container = {"imageUri": "image", "command": ["python", "-c", script], "args": arguments}
    pool = {"machine_spec": machine, "replica_count": 1.0, "container_spec": container, "disk_spec": None}
    scheduling = {"timeout": None, "disable_retries": True, "strategy": None}
    output = {"output_uri_prefix": "gs://b/run/"}
    return {"worker_pool_specs": [pool], "base_output_directory": output, "scheduling": scheduling, **more}


def pipeline(script: str = SAVE, **more: Any) -> TrainingPipeline:
    return TrainingPipeline(
        **{
            "display_name": "digits",
            "training_task_definition": schema.training_job.definition.custom_task,
            "training_task_inputs": inputs(script, ARGUMENTS),
            **more,
        }
    )


def test_a_pipeline_splits_its_data_trains_and_uploads_its_model(service: Service) -> None:
    (service.state_dir.buckets / "b/rows.csv").write_text("x\n" + "1\n" * 10)
    source = {"inputConfig": {"gcsSource": {"uri": ["gs://b/rows.csv"]}}}
    rows = Dataset(display_name="d", metadata_schema_uri=schema.dataset.metadata.tabular, metadata=source)
    data = {"dataset_id": service.datasets.create(PARENT, rows)["name"].rpartition("/")[2]}
    created = service.pipelines.create(PARENT, pipeline(model_to_upload=MODEL, input_data_config=data))
    ended = service.ended(created["name"])
    assert ended["state"] == "PIPELINE_STATE_SUCCEEDED"
    assert ended["createTime"] <= ended["startTime"] <= ended["endTime"]
    assert "error" not in ended
    job = service.store.get(ended["trainingTaskMetadata"]["backingCustomJob"])
    assert (job["displayName"], job["state"]) == ("digits-custom-job", "JOB_STATE_SUCCEEDED")
    uploaded = ended["modelToUpload"]
    model = service.models.get(f"{uploaded['name']}@{uploaded['versionId']}")
    assert (model["displayName"], model["versionId"], model["versionAliases"]) == ("digits", "1", ["default"])
    assert (model["artifactUri"], model["trainingPipeline"]) == ("gs://b/run/model", created["name"])
    trained_on = (service.state_dir.buckets / "b/run/model/weights").read_text()
    assert trained_on.startswith(f"gs://b/run/dataset-{data['dataset_id']}-tables-")


def test_a_pipeline_whose_job_is_over_at_once_still_has_a_start(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = Pipelines._start_job

    def start_and_wait(pipelines: Pipelines, pipeline: Any, extras: Any) -> None:
        start(pipelines, pipeline, extras)
        service.reached(pipeline.job, lambda job: job["state"] == "JOB_STATE_SUCCEEDED")

    monkeypatch.setattr(Pipelines, "_start_job", start_and_wait)
    ended = service.ended(service.pipelines.create(PARENT, pipeline())["name"])
    job = service.store.get(ended["trainingTaskMetadata"]["backingCustomJob"])
    assert ended["startTime"] == job["startTime"]


def test_without_a_model_to_upload_the_job_is_all(service: Service) -> None:
    ended = service.ended(service.pipelines.create(PARENT, pipeline("print('trained')"))["name"])
    assert ended["state"] == "PIPELINE_STATE_SUCCEEDED"
    assert service.models.list(PARENT) == []


def test_a_second_pipeline_makes_a_new_version_of_its_parent_model(service: Service) -> None:
    again = SAVE.replace("mkdir(parents=True)", "mkdir(parents=True, exist_ok=True)")
    new = pipeline(again, model_to_upload=MODEL, model_id="m")
    first = service.ended(service.pipelines.create(PARENT, new)["name"])
    assert first["modelToUpload"]["name"] == f"{PARENT}/models/m"
    newer = pipeline(again, model_to_upload=MODEL, parent_model=f"{PARENT}/models/m")
    second = service.ended(service.pipelines.create(PARENT, newer)["name"])
    assert second["modelToUpload"]["versionId"] == "2"
    assert service.models.get(f"{PARENT}/models/m")["versionId"] == "2"


def test_a_job_that_fails_fails_its_pipeline_with_the_jobs_reason(service: Service) -> None:
    ended = service.ended(service.pipelines.create(PARENT, pipeline("exit(3)"))["name"])
    assert (ended["state"], ended["error"]["code"]) == ("PIPELINE_STATE_FAILED", 3)
    job = ended["trainingTaskMetadata"]["backingCustomJob"]
    said = f"the custom job {job} failed: The replica workerpool0-0 exited with a non-zero status of 3"
    assert ended["error"]["message"].startswith(said)


def test_a_job_that_leaves_no_model_fails_its_pipeline_and_names_the_folder(service: Service) -> None:
    ended = service.ended(service.pipelines.create(PARENT, pipeline("pass", model_to_upload=MODEL))["name"])
    assert (ended["state"], ended["error"]["code"]) == ("PIPELINE_STATE_FAILED", 9)
    assert ended["error"]["message"].startswith("gs://b/run/model is empty")
    assert "AIP_MODEL_DIR" in ended["error"]["message"]
    assert "name" not in ended["modelToUpload"]


def test_data_that_is_not_there_fails_the_pipeline_before_a_job_starts(service: Service) -> None:
    source = {"inputConfig": {"gcsSource": {"uri": ["gs://b/rows.csv"]}}}
    rows = Dataset(display_name="d", metadata_schema_uri=schema.dataset.metadata.tabular, metadata=source)
    data = {"dataset_id": service.datasets.create(PARENT, rows)["name"].rpartition("/")[2]}
    ended = service.ended(service.pipelines.create(PARENT, pipeline(input_data_config=data))["name"])
    assert ended["state"] == "PIPELINE_STATE_FAILED"
    assert "gs://b/rows.csv isn't in the local buckets" in ended["error"]["message"]
    assert service.store.list(PARENT, "customJobs") == []


def test_a_cancelled_pipeline_takes_its_job_with_it(service: Service) -> None:
    name = service.pipelines.create(PARENT, pipeline(WAIT))["name"]
    running = service.reached(name, lambda one: one["state"] == "PIPELINE_STATE_RUNNING")
    with pytest.raises(ApiError, match="cancel the task, and wait until it ends"):
        service.pipelines.delete(name)
    service.pipelines.cancel(name)
    ended = service.ended(name)
    assert (ended["state"], ended["error"]) == (
        "PIPELINE_STATE_CANCELLED",
        {"code": 1, "message": "CANCELED: the pipeline was canceled"},
    )
    assert service.store.get(running["trainingTaskMetadata"]["backingCustomJob"])["state"] == "JOB_STATE_CANCELLED"
    with pytest.raises(ApiError, match=f'TrainingPipeline "{name}" is in state PIPELINE_STATE_CANCELLED and cannot'):
        service.pipelines.cancel(name)
    service.pipelines.delete(name)
    with pytest.raises(ApiError, match="does not exist"):
        service.pipelines.get(name)


def test_when_the_service_stops_a_pipeline_has_failed_and_is_still_there(tmp_path: Path) -> None:
    ours = start(tmp_path)
    name = ours.pipelines.create(PARENT, pipeline(WAIT))["name"]
    ours.reached(name, lambda one: one["state"] == "PIPELINE_STATE_RUNNING")
    with deadline():
        ours.close()
    again = start(tmp_path)
    left = again.pipelines.get(name)
    again.close()
    assert (left["state"], left["error"]["code"]) == ("PIPELINE_STATE_FAILED", 14)
    assert "the local Vertex was stopped" in left["error"]["message"]


def test_a_service_that_was_killed_leaves_failed_pipelines_behind(tmp_path: Path) -> None:
    killed = start(tmp_path)
    name = f"{PARENT}/trainingPipelines/1"
    killed.store.create(name, {"displayName": "d", "state": "PIPELINE_STATE_RUNNING"})
    killed.store.close()
    again = start(tmp_path)
    assert again.pipelines.get(name)["state"] == "PIPELINE_STATE_FAILED"
    again.close()


def test_the_free_form_of_the_sdk_is_a_strict_spec() -> None:
    spec = read_inputs(
        inputs("x", enable_web_access=True, scheduling={"timeout": "60s", "strategy": 4.0}), CustomJobSpec
    )
    machine = {"machineType": "n1-standard-4", "acceleratorType": "NVIDIA_TESLA_T4", "acceleratorCount": 1}
    container = {"imageUri": "image", "command": ["python", "-c", "x"]}
    assert json_format.MessageToDict(CustomJobSpec.pb(spec)) == {
        "workerPoolSpecs": [{"containerSpec": container, "machineSpec": machine, "replicaCount": "1"}],
        "baseOutputDirectory": {"outputUriPrefix": "gs://b/run/"},
        "scheduling": {"timeout": "60s", "strategy": "SPOT"},
        "enableWebAccess": True,
    }


def refusal(service: Service, message: TrainingPipeline) -> dict[str, str]:
    with pytest.raises(ApiError) as caught:
        service.pipelines.create(PARENT, message)
    assert caught.value.status == "INVALID_ARGUMENT", json.dumps(caught.value.as_json())
    assert service.store.list(PARENT, "trainingPipelines") == []
    return {finding.place: finding.sentence for finding in caught.value.findings}


def test_every_fault_of_the_inputs_is_refused_with_its_place(service: Service) -> None:
    wrong = inputs("x", color="red")
    wrong["worker_pool_specs"][0]["container_spec"]["args"] = ["--epochs", 50.0]
    wrong["worker_pool_specs"][0]["replica_count"] = 1.5
    faults = refusal(service, pipeline(training_task_inputs=wrong))
    assert sorted(faults) == [
        "trainingTaskInputs",
        "trainingTaskInputs.workerPoolSpecs[0].containerSpec.args[1]",
        "trainingTaskInputs.workerPoolSpecs[0].replicaCount",
    ]
    assert '"color"' in faults["trainingTaskInputs"]


def test_the_rules_for_jobs_are_those_for_the_job_of_a_pipeline(service: Service) -> None:
    wrong = inputs("x")
    wrong["worker_pool_specs"][0]["replica_count"] = 2.0
    faults = refusal(service, pipeline(training_task_inputs=wrong))
    assert faults["trainingTaskInputs.workerPoolSpecs[0].replicaCount"].startswith("the value must be 1 for the chief")


def tuning(script: str, **more: Any) -> TrainingPipeline:
    """A pipeline of two trials that report the parameter x as their loss."""
    x = {"parameter_id": "x", "double_value_spec": {"min_value": 1.0, "max_value": 2.0}}
    study = {"metrics": [{"metric_id": "loss", "goal": 2.0}], "parameters": [x]}
    counts = {"max_trial_count": 2.0, "parallelTrialCount": 1.0}
    return pipeline(
        training_task_definition="gs://g/definition/hyperparameter_tuning_task_1.0.0.yaml",
        training_task_inputs={"study_spec": study, "trial_job_spec": inputs(script), **counts, **more},
    )


REPORT = """
import json, os, pathlib, sys
report = {"timestamp": 1, "trial": "1", "global_step": "1", "loss": sys.argv[1].partition("=")[2]}
pathlib.Path(os.environ["CLOUD_ML_HP_METRIC_FILE"]).write_text(json.dumps(report))
"""


def test_a_tuning_pipeline_names_its_search_and_the_best_trial(service: Service) -> None:
    ended = service.ended(service.pipelines.create(PARENT, tuning(REPORT))["name"])
    assert ended["state"] == "PIPELINE_STATE_SUCCEEDED", ended
    search = service.store.get(ended["trainingTaskMetadata"]["backingHyperparameterTuningJob"])
    best = min(search["trials"], key=lambda trial: float(trial["finalMeasurement"]["metrics"][0]["value"]))
    assert ended["trainingTaskMetadata"]["bestTrialBackingCustomJob"] == best["customJob"]


def test_a_tuning_pipeline_fails_with_its_search(service: Service) -> None:
    ended = service.ended(service.pipelines.create(PARENT, tuning("exit(1)"))["name"])
    assert ended["state"] == "PIPELINE_STATE_FAILED"
    assert "the tuning job" in ended["error"]["message"]
    assert "2 of 2 trials failed" in ended["error"]["message"]


def test_a_cancelled_tuning_pipeline_takes_its_search_with_it(service: Service) -> None:
    name = service.pipelines.create(PARENT, tuning(WAIT))["name"]
    service.reached(name, lambda resource: resource["state"] == "PIPELINE_STATE_RUNNING")
    service.pipelines.cancel(name)
    ended = service.ended(name)
    assert ended["state"] == "PIPELINE_STATE_CANCELLED"
    search = service.store.get(ended["trainingTaskMetadata"]["backingHyperparameterTuningJob"])
    assert search["state"] == "JOB_STATE_CANCELLED"


def test_the_faults_of_a_study_are_those_of_its_pipeline(service: Service) -> None:
    assert list(refusal(service, tuning(REPORT, max_trial_count=0.0))) == ["trainingTaskInputs.maxTrialCount"]


@pytest.mark.parametrize(
    ("more", "place"),
    [
        ({"display_name": ""}, "displayName"),
        ({"training_task_definition": "gs://g/definition/automl_tabular_1.0.0.yaml"}, "trainingTaskDefinition"),
        ({"training_task_inputs": None}, "trainingTaskInputs"),
        ({"input_data_config": {"annotation_schema_uri": "x"}}, "inputDataConfig.datasetId"),
        ({"model_to_upload": {"display_name": "m"}}, "modelToUpload.containerSpec.imageUri"),
        (
            {
                "training_task_definition": "gs://g/hyperparameter_tuning_task_1.0.0.yaml",
                "input_data_config": {"dataset_id": "7"},
            },
            "inputDataConfig",
        ),
        (
            {"model_to_upload": MODEL, "training_task_inputs": inputs("x", base_output_directory=None)},
            "trainingTaskInputs.baseOutputDirectory",
        ),
    ],
)
def test_a_pipeline_that_cannot_succeed_is_refused(service: Service, more: dict[str, Any], place: str) -> None:
    assert list(refusal(service, pipeline(**more))) == [place]


@pytest.mark.parametrize(
    "more",
    [{"input_data_config": {"dataset_id": "7"}}, {"model_to_upload": MODEL, "parent_model": f"{PARENT}/models/7"}],
    ids=["dataset", "parent model"],
)
def test_what_a_pipeline_builds_on_must_be_there(service: Service, more: dict[str, Any]) -> None:
    with pytest.raises(ApiError, match="/7 does not exist"):
        service.pipelines.create(PARENT, pipeline(**more))

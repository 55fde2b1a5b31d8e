"""The life of training pipelines: a dataset is split, a custom job trains, a model is uploaded.

Only the custom task is served: the one that the SDK's CustomTrainingJob, CustomContainerTrainingJob and
CustomPythonPackageTrainingJob send. Its inputs are a CustomJobSpec in a free form: snake_case or camelCase keys,
every number a float, explicit nulls. Source: google-cloud-aiplatform 2.7.0, training_jobs.py.
"""

import contextlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from google.cloud.aiplatform_v1.types import CustomJob, CustomJobSpec, TrainingPipeline

from vertex_launch import strict_yaml
from vertex_launch.addresses import folder_fault
from vertex_launch.errors import Finding, Findings
from vertex_launch.local.api.create_validation import LONGEST_NAME, name_findings
from vertex_launch.local.api.errors import STATUSES, ApiError, invalid
from vertex_launch.local.api.filters import camel
from vertex_launch.local.api.store import Resource, Store
from vertex_launch.local.jobs import custom_jobs
from vertex_launch.local.jobs.background import BackgroundTask, BackgroundTasks
from vertex_launch.local.jobs.custom_jobs import Extras, Jobs
from vertex_launch.local.registry import datasets
from vertex_launch.local.registry.datasets import Datasets
from vertex_launch.local.registry.models import Models
from vertex_launch.spec import Job, JobError, as_json, read

COLLECTION = "trainingPipelines"
CUSTOM_TASK = "/custom_task_1.0.0.yaml"
INPUTS = "trainingTaskInputs"
SUFFIX = "-custom-job"

PREFIX = "PIPELINE_STATE_"
QUEUED, PENDING, RUNNING, SUCCEEDED, FAILED, CANCELLED = (
    f"{PREFIX}{state}" for state in ("QUEUED", "PENDING", "RUNNING", "SUCCEEDED", "FAILED", "CANCELLED")
)
ENDED = frozenset((SUCCEEDED, FAILED, CANCELLED))
OF_JOB = {"JOB_STATE_QUEUED": QUEUED, "JOB_STATE_PENDING": PENDING, "JOB_STATE_RUNNING": RUNNING}


@dataclass
class _Pipeline(BackgroundTask):
    """A pipeline that has not ended."""

    message: TrainingPipeline
    spec: CustomJobSpec
    resource: Resource  # as it was asked for
    job: str = ""  # the custom job's name, once there is one

    @property
    def output(self) -> str:
        """Address of the job's output folder, without a slash at its end."""
        return self.spec.base_output_directory.output_uri_prefix.rstrip("/")


class Pipelines(BackgroundTasks[_Pipeline]):
    """All training pipelines of the service; thread-safe."""

    collection, noun, prefix, ended = COLLECTION, "pipeline", PREFIX, ENDED

    def __init__(self, store: Store, jobs: Jobs, datasets: Datasets, models: Models, buckets: Path) -> None:
        super().__init__(store)
        self._jobs = jobs
        self._datasets = datasets
        self._models = models
        self._buckets = buckets

    def create(self, parent: str, message: TrainingPipeline) -> Resource:
        """Check a pipeline and begin with it.

        Raises:
            ApiError: INVALID_ARGUMENT with all faults, or NOT_FOUND for a dataset or a parent model.
        """
        resource = as_json(message)
        name = f"{parent}/{COLLECTION}/{self._store.new_id()}"
        spec = self._checked(parent, message, resource)
        return self._begin(_Pipeline(name, message, spec, resource), resource | {"state": PENDING})

    def _checked(self, parent: str, message: TrainingPipeline, resource: Resource) -> CustomJobSpec:
        """What the pipeline's job is to do; raises ApiError for all that can be known to fail."""
        findings = [*name_findings(message.display_name), *_findings(resource)]
        if findings:
            raise invalid(findings)
        spec = job_spec(resource[INPUTS])
        findings = self._jobs.findings(parent, Job(Path(INPUTS), message.display_name, spec), INPUTS)
        if "modelToUpload" in resource and not spec.base_output_directory.output_uri_prefix:
            fault = "is missing, so there is no folder from which to upload a model"
            findings.append(Finding(f"{INPUTS}.baseOutputDirectory", fault, "name one"))
        if findings:
            raise invalid(findings)
        if "inputDataConfig" in resource:
            self._datasets.get(_dataset(parent, resource))
        if "modelToUpload" in resource:
            ids = {"model_id": message.model_id, "parent_model": message.parent_model}
            self._models.check(parent, resource["modelToUpload"], **ids)
        return spec

    def _live(self, pipeline: _Pipeline) -> None:
        self._train(pipeline)
        self._upload(pipeline)

    def _train(self, pipeline: _Pipeline) -> None:
        """Raises ApiError unless the job succeeds."""
        extras = Extras(env=self._data(pipeline))
        display_name = f"{pipeline.message.display_name[: LONGEST_NAME - len(SUFFIX)]}{SUFFIX}"
        with self._lock:
            pipeline.raise_if_stopping()
            job = CustomJob(display_name=display_name, job_spec=pipeline.spec, labels=pipeline.message.labels)
            pipeline.job = self._jobs.create(pipeline.parent, job, extras)["name"]
        self._store.update(pipeline.name, trainingTaskMetadata={"backingCustomJob": pipeline.job})
        self._judge(pipeline, self._follow(pipeline))

    def _data(self, pipeline: _Pipeline) -> dict[str, str]:
        """The variables that name the dataset's files; the files are written now."""
        config = pipeline.resource.get("inputDataConfig")
        if not config:
            return {}
        dataset = self._datasets.get(_dataset(pipeline.parent, pipeline.resource))
        return datasets.export(dataset, config, self._buckets, pipeline.output)

    def _follow(self, pipeline: _Pipeline) -> Resource:
        """The job once it has ended; meanwhile the pipeline is in the state of its job."""
        job = self._store.get(pipeline.job)
        while job["state"] not in custom_jobs.ENDED:
            if job["state"] in OF_JOB:
                self._enter(pipeline, OF_JOB[job["state"]])
            job = self._moved_on(pipeline.job, job["state"])
        return job

    def _moved_on(self, job: str, state: str) -> Resource:
        return self._store.wait(job, lambda one: one["state"] != state)

    def _judge(self, pipeline: _Pipeline, job: Resource) -> None:
        if job["state"] == "JOB_STATE_SUCCEEDED":
            return
        status = next(name for name, (_, code) in STATUSES.items() if code == job["error"]["code"])
        raise ApiError(status, f"the custom job {pipeline.job} failed: {job['error']['message']}")

    def _upload(self, pipeline: _Pipeline) -> None:
        model = pipeline.resource.get("modelToUpload")
        if model is None:
            return
        uploaded = self._models.upload(
            pipeline.parent,
            model,
            f"{pipeline.output}/model",  # AIP_MODEL_DIR
            model_id=pipeline.message.model_id,
            parent_model=pipeline.message.parent_model,
            trainingPipeline=pipeline.name,
        )
        named = {"name": uploaded["name"], "versionId": uploaded["versionId"]}
        self._store.update(pipeline.name, modelToUpload=model | named)

    def _stop(self, pipeline: _Pipeline) -> None:
        super()._stop(pipeline)
        if pipeline.job:
            with contextlib.suppress(ApiError):  # it may have ended and been deleted, while its model is uploaded
                self._jobs.cancel(pipeline.job)


def job_spec(inputs: Any) -> CustomJobSpec:
    """The inputs of a custom task as a CustomJobSpec.

    Raises:
        ApiError: INVALID_ARGUMENT with all faults, each with its place.
    """
    try:
        return read(strict_yaml.from_json(json.dumps(_tidy(inputs)), JobError), CustomJobSpec)
    except JobError as error:
        raise invalid(finding.below(INPUTS) for finding in error.findings) from None


def _tidy(value: Any) -> Any:
    """Without nulls, whole floats as whole numbers, keys in camelCase."""
    if isinstance(value, dict):
        return {camel(key): _tidy(inner) for key, inner in value.items() if inner is not None}
    if isinstance(value, list):
        return [_tidy(inner) for inner in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _findings(resource: Resource) -> Findings:
    definition = resource.get("trainingTaskDefinition", "")
    if not definition.endswith(CUSTOM_TASK):
        yield Finding("trainingTaskDefinition", f'"{definition}" is not served here', f"only {CUSTOM_TASK[1:]} is")
    if not isinstance(resource.get(INPUTS), dict):
        yield Finding(INPUTS, "is no object", "write a CustomJobSpec")
    if "inputDataConfig" in resource and not resource["inputDataConfig"].get("datasetId"):
        yield Finding("inputDataConfig.datasetId", "is missing", "write the id of a dataset")
    sets = resource.get("inputDataConfig", {}).get("gcsDestination", {}).get("outputUriPrefix", "")
    if sets and (found := folder_fault(sets)):
        fault, cure = found
        yield Finding("inputDataConfig.gcsDestination.outputUriPrefix", f"{json.dumps(sets)} {fault}", cure)
    model = resource.get("modelToUpload")
    if model is not None and not model.get("containerSpec", {}).get("imageUri"):
        cure = "name the image that is to serve the model"
        yield Finding("modelToUpload.containerSpec.imageUri", "is missing", cure)


def _dataset(parent: str, resource: Resource) -> str:
    return f"{parent}/{datasets.COLLECTION}/{resource['inputDataConfig']['datasetId']}"

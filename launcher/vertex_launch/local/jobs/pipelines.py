"""Runs training pipelines, which split a dataset, run a custom job or a tuning job, and upload the model.

The SDK classes CustomTrainingJob, CustomContainerTrainingJob, and CustomPythonPackageTrainingJob send the custom task.
The custom task's inputs are a CustomJobSpec, encoded as a google.protobuf.Value. The keys are in snake_case or
camelCase, every number is a float, and nulls are explicit. The tuning task's inputs are the study spec, trial job spec,
and trial counts of a HyperparameterTuningJob.
Source: google-cloud-aiplatform 2.7.0, training_jobs.py; Vertex AI's REST reference, HyperparameterTuningJobMetadata.
"""

import contextlib
import json
from dataclasses import dataclass
from typing import Any, TypeVar

from google.cloud.aiplatform_v1.types.custom_job import CustomJob, CustomJobSpec
from google.cloud.aiplatform_v1.types.hyperparameter_tuning_job import HyperparameterTuningJob
from google.cloud.aiplatform_v1.types.training_pipeline import TrainingPipeline

from vertex_launch.errors import FaultError, Finding, Findings
from vertex_launch.facts.labels import LONGEST_NAME, name_findings
from vertex_launch.job import strict_yaml
from vertex_launch.job.addresses import folder_fault
from vertex_launch.job.job_resource import Resource, tidy, trials
from vertex_launch.job.spec import Job, as_json, read
from vertex_launch.local.api.errors import ApiError, invalid, refuse
from vertex_launch.local.api.store import Store
from vertex_launch.local.jobs import custom_jobs
from vertex_launch.local.jobs.background import BackgroundTask, BackgroundTasks
from vertex_launch.local.jobs.custom_jobs import Jobs
from vertex_launch.local.jobs.tuning import Tunings
from vertex_launch.local.registry import datasets
from vertex_launch.local.registry.models import Models
from vertex_launch.local.rpc_status import STATUSES
from vertex_launch.local.running.prepare import Extras

COLLECTION = "trainingPipelines"
CUSTOM_TASK, TUNING_TASK = "/custom_task_1.0.0.yaml", "/hyperparameter_tuning_task_1.0.0.yaml"
INPUTS, METADATA = "trainingTaskInputs", "trainingTaskMetadata"

PREFIX = "PIPELINE_STATE_"
ENDED = frozenset(f"{PREFIX}{state}" for state in ("SUCCEEDED", "FAILED", "CANCELLED"))
OF_JOB = {f"{custom_jobs.PREFIX}{state}": state for state in ("QUEUED", "PENDING", "RUNNING")}


Inputs = TypeVar("Inputs", CustomJobSpec, HyperparameterTuningJob)


@dataclass
class _Pipeline(BackgroundTask):
    """A training pipeline that hasn't ended."""

    message: TrainingPipeline
    work: CustomJob | HyperparameterTuningJob
    resource: Resource  # the resource that the client sent
    job: str = ""  # the name of the custom job or tuning job after its creation

    @property
    def spec(self) -> CustomJobSpec:
        return self.work.job_spec if isinstance(self.work, CustomJob) else self.work.trial_job_spec

    @property
    def noun(self) -> str:
        return "custom job" if isinstance(self.work, CustomJob) else "tuning job"

    @property
    def output(self) -> str:
        """The URI of the job's output folder, without a trailing slash."""
        return self.spec.base_output_directory.output_uri_prefix.rstrip("/")

    @property
    def dataset(self) -> str:
        """The name of the dataset, or "" if the pipeline doesn't use one."""
        id = self.message.input_data_config.dataset_id
        return f"{self.parent}/{datasets.COLLECTION}/{id}" if id else ""


class Pipelines(BackgroundTasks[_Pipeline]):
    """The service's training pipelines. The class is thread-safe."""

    collection, message, noun, prefix, ended = COLLECTION, TrainingPipeline, "pipeline", PREFIX, ENDED

    def __init__(self, store: Store, jobs: Jobs, tunings: Tunings, models: Models) -> None:
        super().__init__(store)
        self._jobs = jobs
        self._tunings = tunings
        self._models = models

    def create(self, parent: str, message: TrainingPipeline) -> Resource:
        """Check and start a training pipeline.

        Raises ApiError with all errors if the pipeline isn't valid or if its dataset or parent model doesn't exist.
        """
        resource = as_json(message)
        refuse([*name_findings(message.display_name), *_findings(resource)])
        name = f"{parent}/{COLLECTION}/{self._store.new_id()}"
        if message.training_task_definition.endswith(TUNING_TASK):
            pipeline = _Pipeline(name, message, read_inputs(resource[INPUTS], HyperparameterTuningJob), resource)
        else:
            job = CustomJob(job_spec=read_inputs(resource[INPUTS], CustomJobSpec))
            pipeline = _Pipeline(name, message, job, resource)
        self._check(pipeline)
        return self._begin(pipeline, resource | {"state": f"{PREFIX}PENDING"})

    def _check(self, pipeline: _Pipeline) -> None:
        """Raise ApiError if the pipeline's job, dataset, or model would cause it to fail."""
        resource, name = pipeline.resource, pipeline.message.display_name
        if isinstance(pipeline.work, CustomJob):
            findings = self._jobs.findings(pipeline.parent, Job(f"request {name}", name, pipeline.spec), INPUTS)
        else:
            findings = [one.below(INPUTS) for one in self._tunings.findings(pipeline.parent, pipeline.work)]
        if "modelToUpload" in resource and not pipeline.output:
            fault = "is missing, but uploading a model requires an output folder"
            findings.append(Finding(f"{INPUTS}.baseOutputDirectory", fault, "set a folder"))
        refuse(findings)
        if pipeline.dataset:
            self._store.get(pipeline.dataset)
        if "modelToUpload" in resource:
            message, model = pipeline.message, resource["modelToUpload"]
            self._models.check(pipeline.parent, model, message.model_id, message.parent_model)

    def _work(self, pipeline: _Pipeline) -> None:
        """Split the dataset, run the custom job or tuning job, and upload the model.

        Raises ApiError if a step fails.
        """
        env: dict[str, str] = {}
        if pipeline.dataset:
            dataset, config = self._store.get(pipeline.dataset), pipeline.resource["inputDataConfig"]
            env = datasets.export(dataset, config, self._buckets, pipeline.output)
        self._start_job(pipeline, Extras(env=env))
        job = self._follow(pipeline)
        if job["state"] != custom_jobs.SUCCEEDED:
            status = next(name for name, (_, code) in STATUSES.items() if code == job["error"]["code"])
            raise ApiError(status, f"the {pipeline.noun} {pipeline.job} failed: {job['error']['message']}")
        output = pipeline.output
        if best := next((trial for trial in trials(job) if trial["best"]), None):
            named = {"bestTrialBackingCustomJob": f"{pipeline.parent}/{custom_jobs.COLLECTION}/{best['job']}"}
            self._store.update(pipeline.name, **{METADATA: {**self._store.get(pipeline.name)[METADATA], **named}})
            output = f"{output}/{best['id']}"
        if "modelToUpload" in pipeline.resource:
            self._upload(pipeline, pipeline.resource["modelToUpload"], output)

    def _start_job(self, pipeline: _Pipeline, extras: Extras) -> None:
        message, work = pipeline.message, pipeline.work
        suffix = f"-{pipeline.noun.replace(' ', '-')}"
        work.display_name, work.labels = f"{message.display_name[: LONGEST_NAME - len(suffix)]}{suffix}", message.labels
        with self._lock:
            pipeline.raise_if_stopping()
            if isinstance(work, CustomJob):
                pipeline.job = self._jobs.create(pipeline.parent, work, extras)["name"]
            else:
                pipeline.job = self._tunings.create(pipeline.parent, work)["name"]
        self._store.update(pipeline.name, **{METADATA: {f"backing{type(work).__name__}": pipeline.job}})

    def _follow(self, pipeline: _Pipeline) -> Resource:
        """Wait until the pipeline's job ends, and return it. Meanwhile, copy the job's state to the pipeline."""
        job = self._store.get(pipeline.job)
        while (state := job["state"]) not in custom_jobs.ENDED:
            if state in OF_JOB:
                self._enter(pipeline, OF_JOB[state])
            job = self._after(pipeline.job, state)
        if "startTime" in job and "startTime" not in self._store.get(pipeline.name):  # the job ran between two checks
            self._store.update(pipeline.name, startTime=job["startTime"])
        return job

    def _after(self, job: str, state: str) -> Resource:
        return self._store.wait(job, lambda resource: resource["state"] != state)

    def _upload(self, pipeline: _Pipeline, model: Resource, output: str) -> None:
        trained = {**model, "artifactUri": f"{output}/model", "trainingPipeline": pipeline.name}  # AIP_MODEL_DIR
        message = pipeline.message
        uploaded = self._models.upload(pipeline.parent, trained, message.model_id, message.parent_model)
        named = {"name": uploaded["name"], "versionId": uploaded["versionId"]}
        self._store.update(pipeline.name, modelToUpload={**model, **named})

    def _stop(self, pipeline: _Pipeline) -> None:
        super()._stop(pipeline)
        if pipeline.job:
            with contextlib.suppress(ApiError):  # during the upload, the job has ended and may have been deleted
                (self._jobs if isinstance(pipeline.work, CustomJob) else self._tunings).cancel(pipeline.job)


def read_inputs(inputs: Any, kind: type[Inputs]) -> Inputs:
    """Parse a task's inputs, and return them as an API message.

    Raises ApiError INVALID_ARGUMENT with all errors if the inputs aren't valid.
    """
    try:
        return read(strict_yaml.from_json(json.dumps(tidy(inputs))), kind)
    except FaultError as error:
        raise invalid(finding.below(INPUTS) for finding in error.findings) from None


def _findings(resource: Resource) -> Findings:
    definition = resource.get("trainingTaskDefinition", "")
    if not definition.endswith((CUSTOM_TASK, TUNING_TASK)):
        cure = f"use {CUSTOM_TASK[1:]} or {TUNING_TASK[1:]}"
        yield Finding("trainingTaskDefinition", f'"{definition}" isn\'t supported by the local Vertex', cure)
        return  # the other fields belong to that task
    if not isinstance(resource.get(INPUTS), dict):
        yield Finding(INPUTS, "isn't an object", "use a CustomJobSpec")
    if definition.endswith(TUNING_TASK) and "inputDataConfig" in resource:
        yield Finding("inputDataConfig", "isn't supported for a tuning task", "specify the data in the trials' args")
    if "inputDataConfig" in resource and not resource["inputDataConfig"].get("datasetId"):
        yield Finding("inputDataConfig.datasetId", "is missing", "add the ID of a dataset")
    sets = resource.get("inputDataConfig", {}).get("gcsDestination", {}).get("outputUriPrefix", "")
    if sets and (finding := folder_fault(sets, "inputDataConfig.gcsDestination.outputUriPrefix")):
        yield finding
    model = resource.get("modelToUpload")
    if model is not None and not model.get("containerSpec", {}).get("imageUri"):
        cure = "set the image that serves the model"
        yield Finding("modelToUpload.containerSpec.imageUri", "is missing", cure)

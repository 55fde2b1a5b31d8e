"""The life of training pipelines: a dataset is split, a custom job trains, a model is uploaded.

Only the custom task is served: the one that the SDK's CustomTrainingJob, CustomContainerTrainingJob and
CustomPythonPackageTrainingJob send. Its inputs are a CustomJobSpec in a free form: snake_case or camelCase keys,
every number a float, explicit nulls. Source: google-cloud-aiplatform 2.7.0, training_jobs.py.
"""

import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from google.cloud.aiplatform_v1.types import CustomJob, CustomJobSpec, TrainingPipeline

from launch import document
from launch.emulator.resources import datasets, jobs
from launch.emulator.resources.datasets import Datasets
from launch.emulator.resources.errors import STATUSES, ApiError, invalid, our_fault, rpc_status
from launch.emulator.resources.jobs import LONGEST_NAME, STOPPED, Extras, Jobs, name_faults
from launch.emulator.resources.models import Models
from launch.emulator.resources.query import camel
from launch.emulator.resources.store import Resource, Store
from launch.spec import Job, JobError, as_json, read, violations

COLLECTION = "trainingPipelines"
CUSTOM_TASK = "/custom_task_1.0.0.yaml"
INPUTS = "trainingTaskInputs"
SUFFIX = "-custom-job"

QUEUED, PENDING, RUNNING, SUCCEEDED, FAILED, CANCELLING, CANCELLED = (
    f"PIPELINE_STATE_{state}"
    for state in ("QUEUED", "PENDING", "RUNNING", "SUCCEEDED", "FAILED", "CANCELLING", "CANCELLED")
)
ENDED = frozenset((SUCCEEDED, FAILED, CANCELLED))
OF_JOB = {"JOB_STATE_QUEUED": QUEUED, "JOB_STATE_PENDING": PENDING, "JOB_STATE_RUNNING": RUNNING}


@dataclass
class _Pipeline:
    """A pipeline that has not ended."""

    name: str
    message: TrainingPipeline
    spec: CustomJobSpec
    resource: Resource  # as it was created
    job: str = ""  # the custom job's name, once there is one
    cancelled: bool = False
    thread: threading.Thread | None = None

    @property
    def parent(self) -> str:
        return self.name.rpartition(f"/{COLLECTION}/")[0]

    @property
    def id(self) -> str:
        return self.name.rpartition("/")[2]

    @property
    def output(self) -> str:
        """Address of the job's output folder, without a slash at its end."""
        return self.spec.base_output_directory.output_uri_prefix.rstrip("/")


class _CancelledError(Exception):
    """The pipeline is to end."""


class Pipelines:
    """All training pipelines of the service; thread-safe."""

    def __init__(self, store: Store, jobs: Jobs, datasets: Datasets, models: Models, buckets: Path) -> None:
        self._store = store
        self._jobs = jobs
        self._datasets = datasets
        self._models = models
        self._buckets = buckets
        self._lock = threading.Lock()
        self._running: dict[str, _Pipeline] = {}
        self._closed = False
        for resource in store.all(COLLECTION):
            if resource["state"] not in ENDED:
                store.end(resource["name"], FAILED, STOPPED)

    def create(self, parent: str, message: TrainingPipeline) -> Resource:
        """Check a pipeline and begin with it.

        Raises:
            ApiError: INVALID_ARGUMENT with all faults, or NOT_FOUND for a dataset or a parent model.
        """
        resource = as_json(message)
        name = f"{parent}/{COLLECTION}/{self._store.new_id()}"
        spec = self._checked(parent, message, resource)
        with self._lock:
            if self._closed:
                raise ApiError("UNAVAILABLE", "the local Vertex is stopping")
            created = self._store.create(name, resource | {"state": PENDING})
            self._running[name] = pipeline = _Pipeline(name, message, spec, created)
            pipeline.thread = threading.Thread(target=self._run, args=(pipeline,), name=pipeline.id, daemon=True)
            pipeline.thread.start()
        return created

    def get(self, name: str) -> Resource:
        """Raises ApiError NOT_FOUND."""
        return self._store.get(name)

    def cancel(self, name: str) -> None:
        """Begin to stop a pipeline; nothing happens to one that has ended. Raises ApiError NOT_FOUND."""
        with self._lock:
            if self._store.get(name)["state"] not in ENDED:
                self._store.update(name, state=CANCELLING)
                self._stop(self._running[name])

    def delete(self, name: str) -> None:
        """Forget a pipeline that has ended; raises ApiError NOT_FOUND or FAILED_PRECONDITION."""
        self._store.delete_ended(name, ENDED)

    def close(self) -> None:
        """Stop every pipeline with its job."""
        with self._lock:
            self._closed = True
            running = [*self._running.values()]
            for pipeline in running:
                self._stop(pipeline)
        for pipeline in running:
            if pipeline.thread:
                pipeline.thread.join()

    def _checked(self, parent: str, message: TrainingPipeline, resource: Resource) -> CustomJobSpec:
        """What the pipeline's job is to do; raises ApiError for all that can be known to fail."""
        faults = [*name_faults(message.display_name), *_faults(resource)]
        if faults:
            raise invalid(faults)
        spec = job_spec(resource[INPUTS])
        faults = self._jobs.faults(parent, Job(Path(INPUTS), message.display_name, spec), INPUTS)
        if "modelToUpload" in resource and not spec.base_output_directory.output_uri_prefix:
            fault = "is missing, so there is no folder from which to upload a model; name one"
            faults.append((f"{INPUTS}.baseOutputDirectory", fault))
        if faults:
            raise invalid(faults)
        if "inputDataConfig" in resource:
            self._datasets.get(_dataset(parent, resource))
        if "modelToUpload" in resource:
            ids = {"model_id": message.model_id, "parent_model": message.parent_model}
            self._models.check(parent, resource["modelToUpload"], **ids)
        return spec

    def _run(self, pipeline: _Pipeline) -> None:
        """A pipeline's thread."""
        state, error = self._end(pipeline)
        with self._lock:  # or `cancel` could overwrite the end
            self._store.end(pipeline.name, state, error)
            del self._running[pipeline.name]

    def _end(self, pipeline: _Pipeline) -> tuple[str, Resource | None]:
        """Run a pipeline to its last state; also why it failed, if it did."""
        try:
            self._train(pipeline)
            self._upload(pipeline)
            return SUCCEEDED, None
        except _CancelledError:
            cancelled = CANCELLED, rpc_status("CANCELLED", "the pipeline was cancelled")
            return (FAILED, STOPPED) if self._closed else cancelled
        except ApiError as error:
            return FAILED, rpc_status(error.status, error.message)
        except Exception as error:  # it must not leave the pipeline running for ever
            return FAILED, our_fault(error)

    def _train(self, pipeline: _Pipeline) -> None:
        """Raises ApiError or _CancelledError unless the job succeeds."""
        extras = Extras(env=self._data(pipeline))
        display_name = f"{pipeline.message.display_name[: LONGEST_NAME - len(SUFFIX)]}{SUFFIX}"
        with self._lock:
            if pipeline.cancelled:
                raise _CancelledError
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
        while job["state"] not in jobs.ENDED:
            with self._lock:
                if job["state"] in OF_JOB and not pipeline.cancelled:
                    state = OF_JOB[job["state"]]
                    self._store.enter(pipeline.name, state, state == RUNNING)
            job = self._moved_on(pipeline.job, job["state"])
        return job

    def _moved_on(self, job: str, state: str) -> Resource:
        return self._store.wait(job, lambda one: one["state"] != state)

    def _judge(self, pipeline: _Pipeline, job: Resource) -> None:
        if job["state"] == "JOB_STATE_SUCCEEDED":
            return
        if pipeline.cancelled:
            raise _CancelledError
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
        pipeline.cancelled = True
        if pipeline.job:
            self._jobs.cancel(pipeline.job)


def job_spec(inputs: Any) -> CustomJobSpec:
    """The inputs of a custom task as a CustomJobSpec.

    Raises:
        ApiError: INVALID_ARGUMENT with all faults, each with its place.
    """
    try:
        return read(document.from_json(json.dumps(_tidy(inputs)), "", JobError), CustomJobSpec)
    except JobError as error:
        faults = violations(error)
        raise invalid((f"{INPUTS}.{place}" if place else INPUTS, fault) for place, fault in faults) from None


def _tidy(value: Any) -> Any:
    """Without nulls, whole floats as whole numbers, keys in camelCase."""
    if isinstance(value, dict):
        return {camel(key): _tidy(inner) for key, inner in value.items() if inner is not None}
    if isinstance(value, list):
        return [_tidy(inner) for inner in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _faults(resource: Resource) -> Iterator[tuple[str, str]]:
    definition = resource.get("trainingTaskDefinition", "")
    if not definition.endswith(CUSTOM_TASK):
        yield "trainingTaskDefinition", f'"{definition}" is not served here; only {CUSTOM_TASK[1:]} is'
    if not isinstance(resource.get(INPUTS), dict):
        yield INPUTS, "is no object; write a CustomJobSpec"
    if "inputDataConfig" in resource and not resource["inputDataConfig"].get("datasetId"):
        yield "inputDataConfig.datasetId", "is missing; write the id of a dataset"
    model = resource.get("modelToUpload")
    if model is not None and not model.get("containerSpec", {}).get("imageUri"):
        yield "modelToUpload.containerSpec.imageUri", "is missing; name the image that is to serve the model"


def _dataset(parent: str, resource: Resource) -> str:
    return f"{parent}/{datasets.COLLECTION}/{resource['inputDataConfig']['datasetId']}"

"""Strict parser for job files in YAML or JSON, which returns the API's own message or reports all errors together.

A job file is a file that gcloud accepts as --config, with keys in camelCase. It contains a CustomJobSpec (`gcloud ai
custom-jobs create`) or a whole HyperparameterTuningJob (`gcloud ai hp-tuning-jobs create`). gcloud sends unknown keys
to the service, and protobuf stops at the first error. This parser reports all errors.
"""

from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar, cast

from google.cloud.aiplatform_v1.types.accelerator_type import AcceleratorType
from google.cloud.aiplatform_v1.types.custom_job import CustomJobSpec, Scheduling, WorkerPoolSpec
from google.cloud.aiplatform_v1.types.env_var import EnvVar
from google.cloud.aiplatform_v1.types.hyperparameter_tuning_job import HyperparameterTuningJob
from google.protobuf import json_format

from vertex_launch.errors import FaultError, Finding, first, of_file, read_text
from vertex_launch.job import proto_validation, strict_yaml
from vertex_launch.job.job_resource import camel

# Pools by position. Pool 2 contains either reducers or parameter servers.
CHIEF, WORKERS, REDUCERS, EVALUATORS = range(4)
CHIEF_REPLICA = "workerpool0-0"  # the service's name for the chief
OUTPUT = "baseOutputDirectory.outputUriPrefix"
REDUCER_IMAGE = "/reductionserver"

TUNING_KEYS = {"studySpec", "trialJobSpec"}
PIPELINE = (
    "this file is a TrainingPipeline, which isn't supported",
    "write a CustomJobSpec or a HyperparameterTuningJob",
)
OTHER_RESOURCES = {
    "jobSpec": (
        "this file is a CustomJob, but a job file is only a CustomJobSpec",
        "move the contents of jobSpec to the top level",
    ),
    "trainingTaskDefinition": PIPELINE,
    "trainingTaskInputs": PIPELINE,
}

M = TypeVar("M")


@dataclass(frozen=True)
class Pool:
    """A pool with machines: its position, its part of the spec, and values derived from the spec."""

    index: int
    spec: WorkerPoolSpec

    @property
    def trains(self) -> bool:
        """True for pools 0 and 1, the only pools whose replicas have ranks."""
        return self.index in (CHIEF, WORKERS)

    @property
    def reduces(self) -> bool:
        """True for Google's reduction server, or for a mirror of its image with the same name."""
        return REDUCER_IMAGE in self.spec.container_spec.image_uri

    @property
    def serves(self) -> bool:
        """True for parameter servers, which are any program in pool 2 other than the reduction server."""
        return self.index == REDUCERS and not self.reduces

    @property
    def replica_count(self) -> int:
        return self.spec.replica_count

    @property
    def machine_type(self) -> str:
        return self.spec.machine_spec.machine_type

    @property
    def accelerator(self) -> str:
        """The API's name of the accelerator, such as NVIDIA_L4, or "" """
        kind = AcceleratorType(self.spec.machine_spec.accelerator_type)
        return kind.name if kind else ""

    @property
    def accelerator_count(self) -> int:
        return self.spec.machine_spec.accelerator_count

    @property
    def task(self) -> str:
        """The key of the pool's program: containerSpec, pythonPackageSpec, or "" """
        return camel(WorkerPoolSpec.pb(self.spec).WhichOneof("task") or "")

    @property
    def args(self) -> list[str]:
        return [*self.spec.container_spec.args, *self.spec.python_package_spec.args]

    @property
    def env(self) -> list[EnvVar]:
        return [*self.spec.container_spec.env, *self.spec.python_package_spec.env]

    def at(self, *keys: str) -> str:
        """Return a place in this pool for a message, such as `workerPoolSpecs[1].machineSpec`."""
        return ".".join((f"workerPoolSpecs[{self.index}]", *keys))


@dataclass(frozen=True)
class Job:
    """One job, read from a file or from a request."""

    origin: Path | str  # the start of every message about the job: its file, or `request NAME`
    name: str  # the file's name without its ending, or the request's; becomes the job's display name
    spec: CustomJobSpec
    document: Any = field(default=None, compare=False, repr=False)  # the parsed file with its line numbers

    @property
    def path(self) -> Path:
        """The job's file. A job from a request has no file."""
        assert isinstance(self.origin, Path)
        return self.origin

    @cached_property
    def pools(self) -> tuple[Pool, ...]:
        """The pools with machines. An empty pool, `{}`, only skips a position."""
        return tuple(Pool(index, spec) for index, spec in enumerate(self.spec.worker_pool_specs) if spec)

    @property
    def chief(self) -> Pool | None:
        return next((pool for pool in self.pools if pool.index == CHIEF), None)

    @property
    def reducers(self) -> tuple[Pool, ...]:
        """Pool 2, if reduction servers run in it."""
        return tuple(pool for pool in self.pools if pool.index == REDUCERS and pool.reduces)

    @property
    def training_pools(self) -> tuple[Pool, ...]:
        return tuple(pool for pool in self.pools if pool.trains)

    @property
    def strategy(self) -> str:
        """The API's name of the strategy, such as SPOT. STRATEGY_UNSPECIFIED means STANDARD."""
        return str(Scheduling.Strategy(self.spec.scheduling.strategy).name)


@dataclass(frozen=True)
class TuningJob:
    """One hyperparameter tuning job, read from a file."""

    path: Path
    name: str  # its displayName, or the file's name without its ending
    spec: HyperparameterTuningJob
    document: Any = field(default=None, compare=False, repr=False)

    @property
    def trial_job(self) -> Job:
        """The job of each trial, without the trial's parameters."""
        return Job(self.path, self.name, self.spec.trial_job_spec)


def trial(job: Job | TuningJob) -> Job:
    """Return the job of one trial of a tuning job, or the job itself."""
    return job.trial_job if isinstance(job, TuningJob) else job


def load(path: Path) -> Job | TuningJob:
    """Read a CustomJobSpec or a HyperparameterTuningJob from a file. Raises FaultError if the file contains neither."""
    with of_file(path):
        document = strict_yaml.from_yaml(read_text(path))
        if isinstance(document, dict) and TUNING_KEYS & document.keys():
            tuning_job = read(document, HyperparameterTuningJob)
            return TuningJob(path, tuning_job.display_name or path.stem, tuning_job, document)
        return Job(path, path.stem, _custom_job_spec(document), document)


def parse(text: str, file: str) -> CustomJobSpec:
    """Return the CustomJobSpec in YAML or JSON text. Raises FaultError with `file` at the start of each line."""
    with of_file(file):
        return _custom_job_spec(strict_yaml.from_yaml(text))


def read(document: Any, kind: type[M]) -> M:
    """Return the message of this kind in a document. Raises FaultError with all differences."""
    message = kind()
    pb = cast(Any, kind).pb(message)
    findings = [*first(proto_validation.findings(document, pb.DESCRIPTOR))]
    try:
        if not findings:
            _drop_empty(json_format.ParseDict(strict_yaml.plain(document), pb))
    except (json_format.ParseError, ValueError) as error:  # such as a lone surrogate
        findings = [Finding("", str(error).rstrip("."), "correct this value")]
    if findings:
        raise FaultError(*(located(finding, document) for finding in findings))
    return message


def _drop_empty(message: Any) -> None:
    """Clear each submessage without a value, such as an encryptionSpec of {}, which is equivalent to no encryptionSpec.

    Items of a list stay. Submessages whose presence is a choice also stay: in a oneof, and RaySpec, which requests a
    Ray cluster.
    """
    for part, value in message.ListFields():
        kind = proto_validation.message_in(part)
        if kind is None:
            continue
        for inner in value.values() if proto_validation.is_map(part) else value if part.is_repeated else [value]:
            _drop_empty(inner)
        chosen = part.containing_oneof and len(part.containing_oneof.fields) > 1
        if not (part.is_repeated or chosen or value.ListFields() or kind.name == "RaySpec"):
            message.ClearField(part.name)


def located(finding: Finding, document: Any) -> Finding:
    """Return the finding with the line of its place, unless it already has a line. The document can be None."""
    return replace(finding, line=finding.line or strict_yaml.line(document, finding.place))


def as_json(message: Any) -> dict[str, Any]:
    """Return an API message as JSON: keys in camelCase, enums by name, 64-bit numbers as strings."""
    return dict(json_format.MessageToDict(type(message).pb(message)))


def _custom_job_spec(document: Any) -> CustomJobSpec:
    for key, problem in OTHER_RESOURCES.items():
        if isinstance(document, dict) and key in document:
            raise FaultError(Finding("", *problem))
    return read(document, CustomJobSpec)

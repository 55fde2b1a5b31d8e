"""Read a job file: YAML or JSON, strictly, into the API's own message, with every fault at once.

A job file is what gcloud takes as --config, in the API's camelCase: a CustomJobSpec (`gcloud ai custom-jobs
create`) or a whole HyperparameterTuningJob (`gcloud ai hp-tuning-jobs create`). gcloud sends unknown keys on to
the service, and protobuf stops at its first fault; here all are found.
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

# Pools by position. Pool 2 is the parameter servers' too: one role only.
CHIEF, WORKERS, REDUCERS, EVALUATORS = range(4)
CHIEF_REPLICA = "workerpool0-0"  # as the service names it
OUTPUT = "baseOutputDirectory.outputUriPrefix"
REDUCER_IMAGE = "/reductionserver"

TUNING_KEYS = {"studySpec", "trialJobSpec"}
PIPELINE = (
    "is a TrainingPipeline, not supported here yet",
    "this command takes a CustomJobSpec or a HyperparameterTuningJob",
)
OTHER_RESOURCES = {
    "jobSpec": ("is a CustomJob, but a job file is only its CustomJobSpec", "put what jobSpec holds at the top"),
    "trainingTaskDefinition": PIPELINE,
    "trainingTaskInputs": PIPELINE,
}

M = TypeVar("M")


@dataclass(frozen=True)
class Pool:
    """Pool that holds machines: its position, its part of the spec, and facts derived from it."""

    index: int
    spec: WorkerPoolSpec

    @property
    def trains(self) -> bool:
        """Pools 0 and 1: the only ones whose replicas are ranks."""
        return self.index in (CHIEF, WORKERS)

    @property
    def reduces(self) -> bool:
        """True for Google's reduction server, or a mirror of its image under the same name."""
        return REDUCER_IMAGE in self.spec.container_spec.image_uri

    @property
    def serves(self) -> bool:
        """True for parameter servers: pool 2 with another program than the reduction server."""
        return self.index == REDUCERS and not self.reduces

    @property
    def replica_count(self) -> int:
        return self.spec.replica_count

    @property
    def machine_type(self) -> str:
        return self.spec.machine_spec.machine_type

    @property
    def accelerator(self) -> str:
        """The API's name, such as NVIDIA_L4, or "" """
        kind = AcceleratorType(self.spec.machine_spec.accelerator_type)
        return kind.name if kind else ""

    @property
    def accelerator_count(self) -> int:
        return self.spec.machine_spec.accelerator_count

    @property
    def task(self) -> str:
        """The key of what it runs: containerSpec, pythonPackageSpec, or "" """
        return camel(WorkerPoolSpec.pb(self.spec).WhichOneof("task") or "")

    @property
    def args(self) -> list[str]:
        return [*self.spec.container_spec.args, *self.spec.python_package_spec.args]

    @property
    def env(self) -> list[EnvVar]:
        return [*self.spec.container_spec.env, *self.spec.python_package_spec.env]

    def at(self, *keys: str) -> str:
        """A place in this pool, for a message: `workerPoolSpecs[1].machineSpec`."""
        return ".".join((f"workerPoolSpecs[{self.index}]", *keys))


@dataclass(frozen=True)
class Job:
    """One job, read from a file or from a request."""

    origin: Path | str  # begins every message about the job: its file, or `request NAME`
    name: str  # the file's name without its ending, or the request's; becomes the job's display name
    spec: CustomJobSpec
    document: Any = field(default=None, compare=False, repr=False)  # the file, which knows its lines

    @property
    def path(self) -> Path:
        """The job's file; a job from a request has none."""
        assert isinstance(self.origin, Path)
        return self.origin

    @cached_property
    def pools(self) -> tuple[Pool, ...]:
        """The pools that hold machines; an empty pool, `{}`, only keeps a position free."""
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
        """The API's name, such as SPOT; STRATEGY_UNSPECIFIED means STANDARD."""
        return str(Scheduling.Strategy(self.spec.scheduling.strategy).name)


@dataclass(frozen=True)
class TuningJob:
    """Hyperparameter tuning job, read from a file."""

    path: Path
    name: str  # its displayName, or the file's name without its ending
    spec: HyperparameterTuningJob
    document: Any = field(default=None, compare=False, repr=False)

    @property
    def trial_job(self) -> Job:
        """The job of each trial, still without its parameters."""
        return Job(self.path, self.name, self.spec.trial_job_spec)


def trial(job: Job | TuningJob) -> Job:
    """Return the job of one trial of a search, or the job itself."""
    return job.trial_job if isinstance(job, TuningJob) else job


def load(path: Path) -> Job | TuningJob:
    """Read a CustomJobSpec or a HyperparameterTuningJob from a file; raises FaultError if it is neither."""
    with of_file(path):
        document = strict_yaml.from_yaml(read_text(path))
        if isinstance(document, dict) and TUNING_KEYS & document.keys():
            tuning_job = read(document, HyperparameterTuningJob)
            return TuningJob(path, tuning_job.display_name or path.stem, tuning_job, document)
        return Job(path, path.stem, _custom_job_spec(document), document)


def parse(text: str, file: str) -> CustomJobSpec:
    """Return the CustomJobSpec in YAML or JSON text; `file` begins every line of the FaultError that it may raise."""
    with of_file(file):
        return _custom_job_spec(strict_yaml.from_yaml(text))


def read(document: Any, kind: type[M]) -> M:
    """Return the message of this kind in a document; raises FaultError with all differences."""
    message = kind()
    pb = cast(Any, kind).pb(message)
    findings = [*first(proto_validation.findings(document, pb.DESCRIPTOR))]
    try:
        if not findings:
            _drop_empty(json_format.ParseDict(strict_yaml.plain(document), pb))
    except (json_format.ParseError, ValueError) as error:  # such as half a character
        findings = [Finding("", str(error).rstrip("."), "correct this value")]
    if findings:
        raise FaultError(*(located(finding, document) for finding in findings))
    return message


def _drop_empty(message: Any) -> None:
    """Clear, in place, each submessage without a value, such as an encryptionSpec of {}: it means the same as none.

    It stays in a list, and where its presence is a choice: in a oneof, and as RaySpec, which asks for a Ray cluster.
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
    """Return the finding with the line of its place, unless it has a line already; a document may be None."""
    return replace(finding, line=finding.line or strict_yaml.line(document, finding.place))


def as_json(message: Any) -> dict[str, Any]:
    """Return an API message as it goes over the wire: camelCase, enums by name, 64-bit numbers as text."""
    return dict(json_format.MessageToDict(type(message).pb(message)))


def _custom_job_spec(document: Any) -> CustomJobSpec:
    for key, problem in OTHER_RESOURCES.items():
        if isinstance(document, dict) and key in document:
            raise FaultError(Finding("", *problem))
    return read(document, CustomJobSpec)

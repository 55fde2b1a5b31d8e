"""A strict parser for job files in YAML or JSON.

For a valid job file, the parser returns an API message. For an invalid job file, it reports all errors together.

A job file has keys in camelCase, and gcloud accepts it as --config. A job file contains a CustomJobSpec
(`gcloud ai custom-jobs create`) or a complete HyperparameterTuningJob (`gcloud ai hp-tuning-jobs create`). Unlike this
parser, gcloud sends unknown keys to the service, and the protobuf parser stops at the first error.
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
LONGEST_SECONDS = 7 * 24 * 3600.0  # the default job timeout
REDUCER_IMAGE = "/reductionserver"

TUNING_KEYS = {"studySpec", "trialJobSpec"}
PIPELINE = (
    "this file is a TrainingPipeline, which isn't supported",
    "write a CustomJobSpec or a HyperparameterTuningJob",
)
OTHER_RESOURCES = {
    "jobSpec": (
        "this file is a CustomJob, but a job file must be a CustomJobSpec",
        "move the contents of jobSpec to the top level",
    ),
    "trainingTaskDefinition": PIPELINE,
    "trainingTaskInputs": PIPELINE,
}

M = TypeVar("M")


@dataclass(frozen=True)
class Pool:
    """A worker pool that has machines."""

    index: int
    spec: WorkerPoolSpec

    @property
    def trains(self) -> bool:
        """True for worker pools 0 and 1. Only replicas in worker pools 0 and 1 have ranks."""
        return self.index in (CHIEF, WORKERS)

    @property
    def reduces(self) -> bool:
        """True if the pool runs Google's reduction server image, or a mirror of it with the same name."""
        return REDUCER_IMAGE in self.spec.container_spec.image_uri

    @property
    def serves(self) -> bool:
        """True if the pool is pool 2 and doesn't run the reduction server. Such a pool runs parameter servers."""
        return self.index == REDUCERS and not self.reduces

    @property
    def replica_count(self) -> int:
        return self.spec.replica_count

    @property
    def machine_type(self) -> str:
        return self.spec.machine_spec.machine_type

    @property
    def accelerator(self) -> str:
        """The name of the accelerator in the API, such as NVIDIA_L4. The name is "" if there is no accelerator."""
        kind = AcceleratorType(self.spec.machine_spec.accelerator_type)
        return kind.name if kind else ""

    @property
    def accelerator_count(self) -> int:
        return self.spec.machine_spec.accelerator_count

    @property
    def task(self) -> str:
        """The key that specifies the pool's program: containerSpec or pythonPackageSpec.

        This property is "" if the pool doesn't specify a program.
        """
        return camel(WorkerPoolSpec.pb(self.spec).WhichOneof("task") or "")

    @property
    def args(self) -> list[str]:
        return [*self.spec.container_spec.args, *self.spec.python_package_spec.args]

    @property
    def env(self) -> list[EnvVar]:
        return [*self.spec.container_spec.env, *self.spec.python_package_spec.env]

    def at(self, *keys: str) -> str:
        """Return the path of a key in this pool, such as `workerPoolSpecs[1].machineSpec`."""
        return ".".join((f"workerPoolSpecs[{self.index}]", *keys))


@dataclass(frozen=True)
class Job:
    """A custom job that was read from a file or a request."""

    origin: Path | str  # the beginning of every message about the job: the job's file, or `request NAME`
    name: str  # the filename without its extension, or the request's name; becomes the display name
    spec: CustomJobSpec
    document: Any = field(default=None, compare=False, repr=False)  # the parsed file with its line numbers

    @property
    def path(self) -> Path:
        """The job's file. A job that was created by a request doesn't have a file."""
        assert isinstance(self.origin, Path)
        return self.origin

    @cached_property
    def pools(self) -> tuple[Pool, ...]:
        """The worker pools that have machines. An empty pool, `{}`, is only a placeholder for its position."""
        return tuple(Pool(index, spec) for index, spec in enumerate(self.spec.worker_pool_specs) if spec)

    @property
    def chief(self) -> Pool | None:
        return next((pool for pool in self.pools if pool.index == CHIEF), None)

    @property
    def reducers(self) -> tuple[Pool, ...]:
        """The worker pool that runs reduction servers, which can only be pool 2.

        This property is empty if pool 2 doesn't run reduction servers.
        """
        return tuple(pool for pool in self.pools if pool.index == REDUCERS and pool.reduces)

    @property
    def training_pools(self) -> tuple[Pool, ...]:
        return tuple(pool for pool in self.pools if pool.trains)

    @property
    def timeout_seconds(self) -> float:
        """The maximum duration of the job. If the job doesn't set a timeout, the maximum is seven days."""
        scheduling = self.spec.scheduling
        return float(scheduling.timeout.total_seconds() if "timeout" in scheduling else LONGEST_SECONDS)

    @property
    def strategy(self) -> str:
        """The name of the scheduling strategy in the API, such as SPOT. STRATEGY_UNSPECIFIED means STANDARD."""
        return str(Scheduling.Strategy(self.spec.scheduling.strategy).name)


@dataclass(frozen=True)
class TuningJob:
    """A hyperparameter tuning job that was read from a file."""

    path: Path
    name: str  # its displayName, or the filename without its extension
    spec: HyperparameterTuningJob
    document: Any = field(default=None, compare=False, repr=False)

    @property
    def trial_job(self) -> Job:
        """The custom job that each trial runs, without the trial's parameters."""
        return Job(self.path, self.name, self.spec.trial_job_spec)


def trial(job: Job | TuningJob) -> Job:
    """Return the job that each trial of a tuning job runs. Return any other job unchanged."""
    return job.trial_job if isinstance(job, TuningJob) else job


def load(path: Path) -> Job | TuningJob:
    """Read a CustomJobSpec or a HyperparameterTuningJob from a file. Raises FaultError if the file isn't valid."""
    with of_file(path):
        document = strict_yaml.from_yaml(read_text(path))
        if isinstance(document, dict) and TUNING_KEYS & document.keys():
            tuning_job = read(document, HyperparameterTuningJob)
            return TuningJob(path, tuning_job.display_name or path.stem, tuning_job, document)
        return Job(path, path.stem, _custom_job_spec(document), document)


def parse(text: str, file: str) -> CustomJobSpec:
    """Parse YAML or JSON text as a CustomJobSpec.

    Raises FaultError if the text isn't valid. Each line of the error message begins with `file`.
    """
    with of_file(file):
        return _custom_job_spec(strict_yaml.from_yaml(text))


def read(document: Any, kind: type[M]) -> M:
    """Convert a document to an API message. Raises FaultError with all errors if the document isn't valid."""
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
    """Clear each submessage that doesn't contain any values.

    For example, an encryptionSpec of {} is equivalent to a missing one. The items of a list are never
    cleared. Don't clear a RaySpec or submessages in a oneof, because their presence is meaningful. For example, an
    empty RaySpec requests a Ray cluster.
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
    """Add the line number to a finding that doesn't have one.

    If the document is None, don't change the finding.
    """
    return replace(finding, line=finding.line or strict_yaml.line(document, finding.place))


def as_json(message: Any) -> dict[str, Any]:
    """Convert an API message to JSON with camelCase keys, enum values as names, and 64-bit numbers as strings."""
    return dict(json_format.MessageToDict(type(message).pb(message)))


def _custom_job_spec(document: Any) -> CustomJobSpec:
    for key, problem in OTHER_RESOURCES.items():
        if isinstance(document, dict) and key in document:
            raise FaultError(Finding("", *problem))
    return read(document, CustomJobSpec)

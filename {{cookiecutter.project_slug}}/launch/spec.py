"""Read a job file: YAML or JSON, strictly, into the real CustomJobSpec, with every fault at once.

A job file is what `gcloud ai custom-jobs create --config` takes: a CustomJobSpec in the API's camelCase.
gcloud sends unknown keys on to the service, and protobuf stops at its first fault; here all are found.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from google.cloud.aiplatform_v1.types import AcceleratorType, CustomJobSpec, EnvVar, WorkerPoolSpec
from google.protobuf import json_format  # type: ignore[import-untyped, unused-ignore]
from google.protobuf.message import Message  # type: ignore[import-untyped, unused-ignore]
from yaml import MappingNode, Node

from launch import document, schema
from launch.faults import FaultError, read_text

# Pools by position. Pool 2 is the parameter servers' too: one role only.
CHIEF, WORKERS, REDUCERS, EVALUATORS = range(4)
REDUCER_IMAGE = "/reductionserver"

TASKS = {"container_spec": "containerSpec", "python_package_spec": "pythonPackageSpec", None: ""}

NOT_YET = "not supported here yet; this command takes a CustomJobSpec"
OTHER_RESOURCES = {
    "jobSpec": "is a CustomJob, but a job file is only its CustomJobSpec; put what jobSpec holds at the top",
    "studySpec": f"is a HyperparameterTuningJob, {NOT_YET}",
    "trialJobSpec": f"is a HyperparameterTuningJob, {NOT_YET}",
    "trainingTaskDefinition": f"is a TrainingPipeline, {NOT_YET}",
    "trainingTaskInputs": f"is a TrainingPipeline, {NOT_YET}",
}


class JobError(FaultError):
    """The file is not a job; one line for each fault."""


@dataclass(frozen=True)
class Pool:
    """One pool that holds machines: its position, its part of the spec, and what is often asked of it."""

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
        return TASKS[WorkerPoolSpec.pb(self.spec).WhichOneof("task")]

    @property
    def env(self) -> list[EnvVar]:
        return [*self.spec.container_spec.env, *self.spec.python_package_spec.env]

    def at(self, *keys: str) -> str:
        """A place in this pool, for a message: `workerPoolSpecs[1].machineSpec`."""
        return ".".join((f"workerPoolSpecs[{self.index}]", *keys))


@dataclass(frozen=True)
class Job:
    """One job file, read."""

    path: Path
    name: str  # the file's name without its ending; becomes the job's display name
    spec: CustomJobSpec

    @property
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


def load(path: Path) -> Job:
    """Read one job file.

    Raises:
        JobError: it cannot be read or is not a CustomJobSpec.
    """
    return Job(path, path.stem, parse(read_text(path, JobError), str(path)))


def parse(text: str, place: str) -> CustomJobSpec:
    """A CustomJobSpec from YAML or JSON text; `place` begins every line of the JobError that it may raise."""
    root = document.compose(text, place, JobError)
    spec = CustomJobSpec()
    message = CustomJobSpec.pb(spec)
    faults = [f"{place}: {fault}" for fault in _faults(root, message)]
    if faults:
        raise JobError(*faults)
    try:
        json_format.ParseDict(document.plain(root), message)
    except (json_format.ParseError, ValueError) as error:  # such as half a character
        raise JobError(f"{place}: {str(error).rstrip('.')}; correct this value") from None
    return spec


def _faults(root: Node, message: Message) -> Iterator[str]:
    if not isinstance(root, MappingNode):
        yield f"must be a mapping, not {document.kind(root)}; begin with the key workerPoolSpecs"
        return
    other = [fault for key, fault in OTHER_RESOURCES.items() if key in document.items(root)]
    yield from other[:1] or schema.faults(root, message.DESCRIPTOR)

"""Write what a plan found into its job file: two values change, every other byte stays."""

from pathlib import Path
from typing import Any

from google.cloud.aiplatform_v1.types import CustomJobSpec

from vertex_launch import spec, strict_yaml
from vertex_launch.errors import FaultError, read_text
from vertex_launch.plan.reducers import Sizing
from vertex_launch.spec import REDUCERS, Job

POOL = f"workerPoolSpecs[{REDUCERS}]"


class ApplyError(FaultError):
    """The file has no place for the values."""


def apply(job: Job, sizing: Sizing) -> None:
    """Set count and machine type of the job's reducers.

    Raises:
        ApplyError: there are no reducers in the file, or these values are not theirs alone; nothing is written.
    """
    if not job.reducers:
        cure = f"add one of {sizing.count} x {sizing.machine_type}, as in jobs/reduction-server.yaml"
        raise ApplyError(f"{job.path}: {POOL}: there is no pool of reducers; {cure}")
    text = read_text(job.path, ApplyError)
    document = strict_yaml.from_yaml(text, str(job.path), ApplyError)
    changes = {"replicaCount": str(sizing.count), "machineSpec.machineType": sizing.machine_type}
    spans = [(_span(document, f"{POOL}.{key}", job.path), value) for key, value in changes.items()]
    for span, value in sorted(spans, key=lambda change: -change[0].start):  # from the end: what is before stays there
        text = text[: span.start] + value + text[span.stop :]
    if spec.parse(text, str(job.path)) != _changed(job.spec, sizing):
        fault = "shares a value with another pool, through an anchor"
        raise ApplyError(f"{job.path}: {POOL}: {fault}; write it out, and apply again")
    _replace(job.path, text)


def _span(document: Any, place: str, path: Path) -> slice:
    value = strict_yaml.at(document, place)
    if isinstance(value, strict_yaml.Scalar):
        return value.span
    raise ApplyError(f"{path}: {place}: is not in the file; write it, with any value, and apply again")


def _changed(job: CustomJobSpec, sizing: Sizing) -> CustomJobSpec:
    changed = CustomJobSpec(job)
    pool = changed.worker_pool_specs[REDUCERS]
    pool.replica_count = sizing.count
    pool.machine_spec.machine_type = sizing.machine_type
    return changed


def _replace(path: Path, text: str) -> None:
    """All or nothing, with the line ends that the text has."""
    new = path.with_name(f".{path.name}.new")
    new.write_text(text, encoding="utf-8", newline="")
    new.replace(path)

"""Writes the planned reducers to the job file. Changes only the reducers' count and machine type."""

from google.cloud.aiplatform_v1.types.custom_job import CustomJobSpec

from vertex_launch.errors import FaultError, Finding, of_file, read_text
from vertex_launch.job import spec, strict_yaml
from vertex_launch.job.spec import REDUCERS, Job
from vertex_launch.plan.reducers import Sizing

POOL = f"workerPoolSpecs[{REDUCERS}]"


def apply(job: Job, sizing: Sizing) -> None:
    """Set the count and machine type of the reducers in the job file.

    Raises FaultError if the job file doesn't already set both values.
    """
    with of_file(job.path):
        text = _applied(job, sizing)
    new = job.path.with_name(f".{job.path.name}.new")
    new.write_text(text, encoding="utf-8", newline="")  # keep the line endings of the text
    new.replace(job.path)


def _applied(job: Job, sizing: Sizing) -> str:
    """Return the text of the job file with the planned reducers."""
    if not job.reducers:
        machine = f"machineSpec: {{machineType: {sizing.machine_type}}}, replicaCount: {sizing.count}"
        cure = f"add {machine}, and a containerSpec with the reduction server's imageUri"
        raise FaultError(Finding(POOL, "there is no reducer pool", cure))
    before = read_text(job.path)
    text = _edited(before, {"replicaCount": str(sizing.count), "machineSpec.machineType": sizing.machine_type})
    wanted = CustomJobSpec(job.spec)
    pool = wanted.worker_pool_specs[REDUCERS]
    pool.replica_count, pool.machine_spec.machine_type = sizing.count, sizing.machine_type
    if spec.parse(text, str(job.path)) != wanted:
        fault = "this pool shares a value with another pool through a YAML anchor"
        raise FaultError(Finding(POOL, fault, "replace the alias with the value, and retry"))
    return text


def _edited(text: str, values: dict[str, str]) -> str:
    """Return the text with new values for the reducers. The YAML parser's marks locate the current values."""
    document, places = strict_yaml.from_yaml(text), []
    for key, value in values.items():
        scalar = strict_yaml.at(document, f"{POOL}.{key}")
        if not isinstance(scalar, strict_yaml.Scalar):
            cure = "add this key with any value, and retry"
            raise FaultError(Finding(f"{POOL}.{key}", "the key isn't in the file", cure))
        quote = text[scalar.span.start] if text[scalar.span.start] in "\"'" else ""
        places.append((scalar.span.start, scalar.span.stop, f"{quote}{value}{quote}"))
    for start, end, value in sorted(places, reverse=True):  # from the end, so that earlier marks stay valid
        text = text[:start] + value + text[end:]
    return text

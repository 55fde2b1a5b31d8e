"""Where the local Vertex keeps what outlives it."""

import json
from dataclasses import dataclass
from pathlib import Path

from launch.addresses import folder_fault
from launch.faults import FaultError
from launch.spec import Job

OUTPUT = "baseOutputDirectory.outputUriPrefix"


class OutputError(FaultError):
    """The job's output folder cannot be used on this machine."""


@dataclass(frozen=True)
class Home:
    """The folder that holds the local Vertex's state."""

    folder: Path = Path(".vertex")

    @property
    def buckets(self) -> Path:
        """One folder a bucket: what /gcs is in the cloud."""
        return self.folder.absolute() / "gcs"

    def logs(self, job_id: str) -> Path:
        """The folder of one job: what its replicas printed, and what was installed for it."""
        return self.folder.absolute() / "jobs" / job_id

    def journal(self, job_id: str) -> Path:
        """All lines of all replicas of a job, with their times."""
        return self.logs(job_id) / "log.jsonl"

    def metrics(self, job_id: str, replica: str = "workerpool0-0") -> Path:
        """Where a replica of a tuning trial reports its metrics; only the chief's count."""
        return self.logs(job_id) / f"{replica}.metrics"


def output_folder(job: Job, home: Home) -> Path | None:
    """The folder that stands for the job's output, never one outside its bucket; none if the job names none."""
    prefix = job.spec.base_output_directory.output_uri_prefix
    if fault := folder_fault(prefix) if prefix else "":
        raise OutputError(f"{job.path}: {OUTPUT}: {json.dumps(prefix)} {fault}")
    return home.buckets / prefix.removeprefix("gs://") if prefix else None

"""Paths of the state that outlives the local Vertex.

Buckets have the modes that the user's umask says, as data is shared; all other state is the user's alone.
"""

import os
from dataclasses import dataclass
from pathlib import Path

from vertex_launch.errors import FaultError
from vertex_launch.job.addresses import folder_fault
from vertex_launch.job.spec import CHIEF_REPLICA, OUTPUT, Job


@dataclass(frozen=True)
class StateDir:
    """The folder that holds the local Vertex's state."""

    folder: Path = Path(".vertex")

    @property
    def buckets(self) -> Path:
        """One folder a bucket: what /gcs is in the cloud."""
        return self.folder.absolute() / "gcs"

    @property
    def caches(self) -> Path:
        """Caches of programs in replicas."""
        return self.folder.absolute() / "cache"

    def of_replicas(self, job_id: str) -> Path:
        """The folder that is $HOME in the replicas of one job."""
        return self.folder.absolute() / "homes" / job_id

    def logs(self, job_id: str) -> Path:
        """The folder of one job: what its replicas printed, and what was installed for it."""
        return self.folder.absolute() / "jobs" / job_id

    def journal(self, job_id: str) -> Path:
        """All lines of all replicas of a job, with their times."""
        return self.logs(job_id) / "log.jsonl"

    @property
    def entries(self) -> Path:
        """The log entries that programs in replicas sent to Cloud Logging."""
        return self.folder / "entries.jsonl"

    def hosts(self, job_id: str) -> Path:
        """The file that resolves the host names of a job's replicas."""
        return self.logs(job_id) / "hosts"

    def nfs(self, server: str, path: str) -> Path:
        """The folder that stands for what a file server exports."""
        return self.folder.absolute() / "nfs" / server / path.lstrip("/")

    def metrics(self, job_id: str, replica: str = CHIEF_REPLICA) -> Path:
        """The file in which a replica of a tuning trial reports its metrics; only the chief's count."""
        return self.logs(job_id) / f"{replica}.metrics"


def output_folder(job: Job, state_dir: StateDir) -> Path | None:
    """Return the folder that stands for the job's output, always inside its bucket; None if the job names none."""
    prefix = job.spec.base_output_directory.output_uri_prefix
    if prefix and (finding := folder_fault(prefix, OUTPUT)):
        raise FaultError(finding, file=str(job.origin))
    return state_dir.buckets / prefix.removeprefix("gs://") if prefix else None


def private(folder: Path) -> Path:
    """Make a folder, and what is missing above it, that nobody else may enter; returns it."""
    for path in (*reversed(folder.parents), folder):
        if not path.is_dir():
            path.mkdir(mode=0o700, exist_ok=True)
    return folder


def private_file(path: str | Path, flags: int) -> int:
    """The `opener` of files that nobody else may read."""
    return os.open(path, flags, 0o600)

"""Paths of the local Vertex's persistent state.

The user's umask sets the modes of buckets, because data is shared. Only the user can access all other state.
"""

import os
from dataclasses import dataclass
from pathlib import Path

from vertex_launch.errors import FaultError
from vertex_launch.job.addresses import folder_fault
from vertex_launch.job.spec import CHIEF_REPLICA, OUTPUT, Job


@dataclass(frozen=True)
class StateDir:
    """The folder with the local Vertex's state."""

    folder: Path = Path(".vertex")

    @property
    def buckets(self) -> Path:
        """The folder with one folder per bucket, like /gcs in the cloud."""
        return self.folder.absolute() / "gcs"

    @property
    def caches(self) -> Path:
        """The folder with the caches of programs in replicas."""
        return self.folder.absolute() / "cache"

    def of_replicas(self, job_id: str) -> Path:
        """Return the folder that is $HOME in the replicas of one job."""
        return self.folder.absolute() / "homes" / job_id

    def logs(self, job_id: str) -> Path:
        """Return the folder of one job, with the output of its replicas and the packages installed for it."""
        return self.folder.absolute() / "jobs" / job_id

    def journal(self, job_id: str) -> Path:
        """Return the file with all log lines of a job's replicas, with their times."""
        return self.logs(job_id) / "log.jsonl"

    @property
    def entries(self) -> Path:
        """The file with the log entries that programs in replicas sent to Cloud Logging."""
        return self.folder / "entries.jsonl"

    def hosts(self, job_id: str) -> Path:
        """Return the file that resolves the host names of a job's replicas."""
        return self.logs(job_id) / "hosts"

    def nfs(self, server: str, path: str) -> Path:
        """Return the local folder for an exported folder of a file server."""
        return self.folder.absolute() / "nfs" / server / path.lstrip("/")

    def metrics(self, job_id: str, replica: str = CHIEF_REPLICA) -> Path:
        """Return the file in which a replica of a trial reports its metrics. Only the chief's metrics count."""
        return self.logs(job_id) / f"{replica}.metrics"


def output_folder(job: Job, state_dir: StateDir) -> Path | None:
    """Return the local folder for the job's output, which is always inside its bucket, or None if the job sets none."""
    prefix = job.spec.base_output_directory.output_uri_prefix
    if prefix and (finding := folder_fault(prefix, OUTPUT)):
        raise FaultError(finding, file=str(job.origin))
    return state_dir.buckets / prefix.removeprefix("gs://") if prefix else None


def private(folder: Path) -> Path:
    """Create a folder and its missing parents, accessible only to the user, and return the folder."""
    for path in (*reversed(folder.parents), folder):
        if not path.is_dir():
            path.mkdir(mode=0o700, exist_ok=True)
    return folder


def private_file(path: str | Path, flags: int) -> int:
    """Open a file that only the user can read, as an `opener` for open()."""
    return os.open(path, flags, 0o600)

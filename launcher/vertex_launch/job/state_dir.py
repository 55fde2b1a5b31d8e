"""Paths of the local Vertex's persistent state.

Buckets contain shared data, so the user's umask determines the permissions of their files. All other files of the
local Vertex are accessible only to the user.
"""

import os
from dataclasses import dataclass
from pathlib import Path

from vertex_launch.errors import FaultError
from vertex_launch.job.addresses import folder_fault
from vertex_launch.job.spec import CHIEF_REPLICA, OUTPUT, Job


@dataclass(frozen=True)
class StateDir:
    """The folder that contains the local Vertex's state. Raises FaultError if `folder` is a file."""

    folder: Path = Path(".vertex")

    def __post_init__(self) -> None:
        if self.folder.is_file():
            raise FaultError(f"{self.folder} is a file; use --state-dir to specify a folder")

    @property
    def buckets(self) -> Path:
        """The folder that contains a subfolder for each bucket, as /gcs does on Vertex AI."""
        return self.folder.absolute() / "gcs"

    @property
    def caches(self) -> Path:
        """The folder for the caches of programs that run in replicas."""
        return self.folder.absolute() / "cache"

    def of_replicas(self, job_id: str) -> Path:
        """Return the home directory ($HOME) of a job's replicas."""
        return self.folder.absolute() / "homes" / job_id

    def logs(self, job_id: str) -> Path:
        """Return the folder that contains the output of a job's replicas and the packages installed for the job."""
        return self.folder.absolute() / "jobs" / job_id

    def journal(self, job_id: str) -> Path:
        """Return the file that contains all log lines of a job's replicas, with timestamps."""
        return self.logs(job_id) / "log.jsonl"

    @property
    def entries(self) -> Path:
        """The file that contains the log entries that programs in replicas sent to Cloud Logging."""
        return self.folder / "entries.jsonl"

    def hosts(self, job_id: str) -> Path:
        """Return the hosts file, which resolves the hostnames of a job's replicas."""
        return self.logs(job_id) / "hosts"

    def nfs(self, server: str, path: str) -> Path:
        """Return the local folder that replaces an NFS server's exported folder."""
        return self.folder.absolute() / "nfs" / server / path.lstrip("/")

    def metrics(self, job_id: str, replica: str = CHIEF_REPLICA) -> Path:
        """Return the file to which a trial's replica writes its metrics. The study uses only the chief's metrics."""
        return self.logs(job_id) / f"{replica}.metrics"


def output_folder(job: Job, state_dir: StateDir) -> Path | None:
    """Return the local folder for a job's output, which is always inside the bucket's folder.

    Return None if the job doesn't set an output folder. Raises FaultError if the output folder isn't valid.
    """
    prefix = job.spec.base_output_directory.output_uri_prefix
    if prefix and (finding := folder_fault(prefix, OUTPUT)):
        raise FaultError(finding, file=str(job.origin))
    return state_dir.buckets / prefix.removeprefix("gs://") if prefix else None


def private(folder: Path) -> Path:
    """Create a folder and its missing parents, and return the folder. Only the user can access the new folders."""
    for path in (*reversed(folder.parents), folder):
        if not path.is_dir():
            path.mkdir(mode=0o700, exist_ok=True)
    return folder


def private_file(path: str | Path, flags: int) -> int:
    """Open a file that only the user can read. Use this function as the `opener` argument of open()."""
    return os.open(path, flags, 0o600)

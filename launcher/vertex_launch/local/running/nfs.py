"""Uses local folders to simulate a job's NFS mounts.

All jobs that mount the same NFS export share one local folder.
"""

from pathlib import Path, PurePosixPath

from vertex_launch.errors import FaultError, Finding
from vertex_launch.job.spec import Job
from vertex_launch.job.state_dir import StateDir
from vertex_launch.local.running.namespaces import Isolation

# The parent of all mount points. Source: google-cloud-aiplatform, types/machine_resources.py
MOUNTS = PurePosixPath("/mnt/nfs")


def folders(job: Job, state_dir: StateDir) -> dict[int, dict[str, Path]]:
    """Create the local folders for the NFS mounts. For each pool, return a map from mount points to local folders.

    Raises FaultError if a path contains "..".
    """
    places: dict[int, dict[str, Path]] = {}
    for pool in job.pools:
        for mount in pool.spec.nfs_mounts:
            if ".." in PurePosixPath(f"{mount.server}/{mount.path}/{mount.mount_point}").parts:
                finding = Finding(pool.at("nfsMounts"), 'a path contains ".."', "remove it")
                raise FaultError(finding, file=job.origin)
            folder = state_dir.nfs(mount.server, mount.path)
            folder.mkdir(parents=True, exist_ok=True)
            # Public jobs specify a mount point with or without the parent folder.
            place = MOUNTS / mount.mount_point.removeprefix(f"{MOUNTS}/").lstrip("/")
            places.setdefault(pool.index, {})[str(place)] = folder
    return places


def require_mounts(job: Job, isolated: Isolation) -> None:
    """Raise FaultError if the job has NFS mounts but replicas can't mount folders on this system."""
    fault, cure = (
        "processes can't mount folders on this system",
        "run the job with --containers, or use a bucket",
    )
    findings = [Finding(pool.at("nfsMounts"), fault, cure) for pool in job.pools if pool.spec.nfs_mounts]
    if findings and not isolated.mounts:
        raise FaultError(*findings, file=job.origin)

"""File servers of a job: what each exports is a folder here, which all jobs that mount it share."""

from pathlib import Path, PurePosixPath

from vertex_launch.errors import FaultError, Finding
from vertex_launch.job.spec import Job
from vertex_launch.job.state_dir import StateDir
from vertex_launch.local.running.namespaces import Isolation

# Above all mount points. Source: google-cloud-aiplatform, types/machine_resources.py
MOUNTS = PurePosixPath("/mnt/nfs")


def folders(job: Job, state_dir: StateDir) -> dict[int, dict[str, Path]]:
    """Return, for each pool, the places of its NFS mounts and the folders that stand there; makes those."""
    places: dict[int, dict[str, Path]] = {}
    for pool in job.pools:
        for mount in pool.spec.nfs_mounts:
            if ".." in PurePosixPath(f"{mount.server}/{mount.path}/{mount.mount_point}").parts:
                finding = Finding(pool.at("nfsMounts"), 'has ".." in a path', "write it without")
                raise FaultError(finding, file=job.origin)
            folder = state_dir.nfs(mount.server, mount.path)
            folder.mkdir(parents=True, exist_ok=True)
            # Public jobs write a mount point with or without the folder of all mounts.
            place = MOUNTS / mount.mount_point.removeprefix(f"{MOUNTS}/").lstrip("/")
            places.setdefault(pool.index, {})[str(place)] = folder
    return places


def require_mounts(job: Job, isolated: Isolation) -> None:
    """Raises FaultError if replicas would miss the job's NFS mounts, as this system lets nobody mount a folder."""
    fault, cure = "cannot be mounted by processes on this system", "run it with --containers, or read from a bucket"
    findings = [Finding(pool.at("nfsMounts"), fault, cure) for pool in job.pools if pool.spec.nfs_mounts]
    if findings and not isolated.mounts:
        raise FaultError(*findings, file=job.origin)

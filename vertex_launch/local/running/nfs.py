"""File servers of a job: what each exports is a folder here, which all jobs that mount it share."""

from pathlib import Path, PurePosixPath

from vertex_launch.errors import FaultError, Finding
from vertex_launch.local.running.namespaces import Isolation
from vertex_launch.spec import Job
from vertex_launch.state_dir import StateDir

MOUNTS = PurePosixPath(
    "/mnt/nfs"
)  # a mount point is a name below it. Source: google-cloud-aiplatform, types/machine_resources.py


def folders(job: Job, state_dir: StateDir) -> dict[int, dict[str, Path]]:
    """Return, for each pool, the places of its NFS mounts and the folders that stand there; makes those."""
    places: dict[int, dict[str, Path]] = {}
    for pool in job.pools:
        for mount in pool.spec.nfs_mounts:
            if ".." in PurePosixPath(f"{mount.server}/{mount.path}/{mount.mount_point}").parts:
                raise FaultError(
                    Finding(pool.at("nfsMounts"), 'has ".." in a path', "write it without"), file=job.origin
                )
            folder = state_dir.nfs(mount.server, mount.path)
            folder.mkdir(parents=True, exist_ok=True)
            places.setdefault(pool.index, {})[_place(mount.mount_point)] = folder
    return places


def require_mounts(job: Job, isolated: Isolation) -> None:
    """Raises FaultError if replicas would miss the job's NFS mounts, as this system lets nobody mount a folder."""
    pools = [] if isolated.buckets else [pool for pool in job.pools if pool.spec.nfs_mounts]
    if pools:
        cure = "run it with --containers, or read from a bucket"
        raise FaultError(
            *(Finding(pool.at("nfsMounts"), "cannot be mounted by processes on this system", cure) for pool in pools),
            file=job.origin,
        )


def _place(mount_point: str) -> str:
    """Return the place of a mount point, which public jobs write with or without the folder of all mounts."""
    return str(MOUNTS / mount_point.removeprefix(f"{MOUNTS}/").lstrip("/"))

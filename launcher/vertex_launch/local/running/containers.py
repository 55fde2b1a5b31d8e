"""Runs replicas in Docker or Podman containers that are created from their images.

The containers share this machine's network, so CLUSTER_SPEC contains the same addresses as without containers. In
each container, the local buckets are mounted at /gcs.
"""

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from vertex_launch.errors import FaultError, Finding
from vertex_launch.facts.catalog import PLATFORM
from vertex_launch.job.contract import Replica
from vertex_launch.job.spec import Job
from vertex_launch.local.google import METADATA
from vertex_launch.local.running.context import Context
from vertex_launch.local.running.hosts import Hosts
from vertex_launch.local.running.namespaces import GCS

CLIENTS = ("docker", "podman")
ANSWER_SECONDS = 10.0  # the timeout for an optional query
ENTRY_POINT = "the image's own entry point"  # replaces a command
# Prefixes of variables that the client reads itself. The client's command contains the replica's values for them.
CLIENTS_OWN = ("PATH", "HOME", "LD_", "DOCKER_", "XDG_", "CONTAINER")
METRIC_FILE = "CLOUD_ML_HP_METRIC_FILE"
AUTHORITIES = "SSL_CERT_FILE"
GPUS = "CUDA_VISIBLE_DEVICES"
# Share this machine's network, its shared memory, and its folders regardless of SELinux labels.
SHARED = ("--network=host", "--ipc=host", "--security-opt=label=disable")


def installed() -> str:
    """Return the path of the docker or podman command, or "" if neither is installed."""
    return next(filter(None, map(shutil.which, CLIENTS)), "")


def client() -> str:
    """Return the path of the docker or podman command. Raises FaultError if neither command is installed."""
    engine = installed()
    if not engine:
        raise FaultError(
            "--containers: docker and podman aren't installed; to run replicas as processes, omit --containers"
        )
    return engine


def label(image: str, name: str) -> str:
    """Return the value of a label on a local image.

    Return "" if the image or the label doesn't exist, or if Docker or Podman doesn't respond in time.
    """
    client = installed()
    words = ("image", "inspect", f'--format={{{{index .Config.Labels "{name}"}}}}', image)
    with contextlib.suppress(subprocess.TimeoutExpired):
        inspected = _client(client, *words, seconds=ANSWER_SECONDS) if client else None
        return inspected.stdout.strip() if inspected and not inspected.returncode else ""
    return ""


def require_images(job: Job, client: str) -> None:
    """Pull the job's images that are missing on this machine.

    Raises FaultError if an image can't be pulled or if a pool has a pythonPackageSpec.
    """
    for pool in job.pools:
        if pool.task == "pythonPackageSpec":
            raise FaultError(Finding(pool.at(), "has a pythonPackageSpec", "omit --containers"), file=job.origin)
    images = {pool.spec.container_spec.image_uri for pool in job.pools if not pool.reduces}
    for image in sorted(images):
        if _client(client, "image", "inspect", image).returncode:
            pulled = _client(client, "pull", "--quiet", f"--platform={PLATFORM}", image)
            if pulled.returncode:
                error = " ".join(pulled.stderr.split()).removeprefix("Error response from daemon: ")
                if "daemon running" in error:
                    raise FaultError(f"--containers: {error} Start the daemon, or omit --containers")
                cure = "build the image first, or correct its name"
                raise FaultError(f"{job.origin}: image {image} isn't local and can't be pulled ({error}); {cure}")


def entry_points(job: Job) -> dict[str, tuple[str, ...]]:
    """Return a placeholder command for each image, because only the image defines its entry point."""
    return {pool.spec.container_spec.image_uri: (ENTRY_POINT,) for pool in job.pools}


def contained(
    job: Job, job_id: str, replica: Replica, machines: Hosts, mounts: Mapping[int, Mapping[str, Path]], context: Context
) -> Replica:
    """Return a replica whose command starts a container with the replica's environment variables.

    `mounts` maps each pool's index to its NFS mount points and their local folders.
    """
    (image,) = (pool.spec.container_spec.image_uri for pool in job.pools if pool.index == replica.pool)
    first, *words = replica.command
    start = [] if first == ENTRY_POINT else [f"--entrypoint={first}"]
    client, buckets = context.options.containers, context.state_dir.buckets
    env, own = replica.env, machines[replica.pool, replica.index]
    folders = {str(buckets.absolute()): GCS}
    folders |= {str(folder): place for place, folder in mounts.get(replica.pool, {}).items()}
    if metrics := env.get(METRIC_FILE):
        folders[str(Path(metrics).parent)] = str(Path(metrics).parent)
    if authorities := context.wire.get(AUTHORITIES):
        folders[authorities] = authorities
    command = (
        *(client, "run", "--rm", f"--name=vertex-{job_id}-{replica.name}", f"--platform={PLATFORM}", *SHARED),
        f"--hostname={own.name}",
        *(f"--add-host={host.name}:{host.ip}" for host in machines.values()),
        *(f"--add-host={name}:{context.metadata}" for name in METADATA if context.metadata),
        *(f"--volume={source}:{target}" for source, target in folders.items()),
        *_user(client),
        *_variables(env),
        *_gpus(client, env.get(GPUS, "")),
        *(*start, image, *words),
    )
    through = {name: value for name, value in env.items() if not name.startswith(CLIENTS_OWN)}
    return replace(replica, command=command, env={**context.environ, **through})


def _variables(env: Mapping[str, str]) -> Iterator[str]:
    """Yield the `--env` options.

    Most options contain only the variable's name, so that process lists don't show its value.
    """
    for name, value in env.items():
        if name != GPUS or not value:  # a container numbers its own GPUs from 0
            yield f"--env={name}={value}" if name.startswith(CLIENTS_OWN) else f"--env={name}"


def _gpus(client: str, indices: str) -> list[str]:
    if not indices:
        return []
    if Path(client).name == "podman":
        return [f"--device=nvidia.com/gpu={index}" for index in indices.split(",")]
    return [f'--gpus="device={indices}"']


def _user(client: str) -> tuple[str, ...]:
    """Return the Docker options that run a container as the current user, so that root doesn't own its files.

    In rootless Docker and in Podman, root in the container already maps to the current user. Podman, even if installed
    as docker, doesn't support this `info` format and returns an error.
    """
    info = _client(client, "info", "--format={{.SecurityOptions}}")
    if os.getuid() == 0 or info.returncode or "rootless" in info.stdout:
        return ()
    return f"--user={os.getuid()}:{os.getgid()}", "--env=HOME=/tmp"


def _client(client: str, *words: str, seconds: float | None = None) -> "subprocess.CompletedProcess[str]":
    return subprocess.run((client, *words), capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=seconds)

"""Replicas as containers of their own images, where Docker or Podman is there.

They share this machine's network, so that the addresses of CLUSTER_SPEC are those of processes; buckets are at /gcs.
"""

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from vertex_launch.contract import Replica
from vertex_launch.errors import FaultError, Finding
from vertex_launch.image import PLATFORM
from vertex_launch.local.context import Context
from vertex_launch.local.running.namespaces import PYTHON, Isolation
from vertex_launch.spec import Job

CLIENTS = ("docker", "podman")
ANSWER_SECONDS = 10.0  # for a question on which little depends
SHIM = Path(__file__).with_name("container_shim.py")
ENTRY_POINT = "the image's own entry point"  # in place of a command
# Variables of the client itself, whose values for the replica go another way.
CLIENTS_OWN = ("PATH", "HOME", "LD_", "DOCKER_", "XDG_", "CONTAINER")
METRIC_FILE = "CLOUD_ML_HP_METRIC_FILE"
GPUS = "CUDA_VISIBLE_DEVICES"
# With this machine: its network; its memory for exchange between processes; its folders, whatever SELinux calls them.
SHARED = ("--network=host", "--ipc=host", "--security-opt=label=disable")


@dataclass(frozen=True)
class Containers(Isolation):
    """Runs a client's command, and removes its container whatever becomes of the client."""

    client: str = CLIENTS[0]

    def command(self, command: tuple[str, ...]) -> list[str]:
        name = next(word.partition("=")[2] for word in command if word.startswith("--name="))
        return [*PYTHON, str(SHIM), self.client, name, *command]


def installed() -> str:
    """The client that is there, "" where none is."""
    return next(filter(None, map(shutil.which, CLIENTS)), "")


def client() -> str:
    """The client that is there; raises FaultError where none is."""
    found = installed()
    if not found:
        raise FaultError("--containers: there is no docker and no podman here; leave it out to run processes")
    return found


def label(image: str, name: str) -> str:
    """What an image on this machine is labelled with; "" where it is not, or there is no client that answers soon."""
    client = installed()
    words = ("image", "inspect", f'--format={{{{index .Config.Labels "{name}"}}}}', image)
    with contextlib.suppress(subprocess.TimeoutExpired):
        said = _client(client, *words, seconds=ANSWER_SECONDS) if client else None
        return said.stdout.strip() if said and not said.returncode else ""
    return ""


def require_images(job: Job, client: str) -> None:
    """Fetch the images that are not here.

    Raises:
        FaultError: one of them cannot be had, or a pool has no image of its own.
    """
    for pool in job.pools:
        if pool.task == "pythonPackageSpec":
            raise FaultError(Finding(pool.at(), "has a pythonPackageSpec", "leave out --containers"), file=job.origin)
    images = {pool.spec.container_spec.image_uri for pool in job.pools if not pool.reduces}
    for image in sorted(images):
        if _client(client, "image", "inspect", image).returncode:
            pulled = _client(client, "pull", "--quiet", PLATFORM, image)
            if pulled.returncode:
                said = " ".join(pulled.stderr.split()).removeprefix("Error response from daemon: ")
                if "daemon running" in said:
                    raise FaultError(f"--containers: {said} start it, or leave --containers out")
                cure = "build it first, or mend the name"
                raise FaultError(f"{job.origin}: image {image} is not here and cannot be fetched ({said}); {cure}")


def entry_points(job: Job) -> dict[str, tuple[str, ...]]:
    """What stands for the commands that only the images know."""
    return {pool.spec.container_spec.image_uri: (ENTRY_POINT,) for pool in job.pools}


def contained(job: Job, job_id: str, replica: Replica, theirs: Mapping[str, str], context: Context) -> Replica:
    """A replica whose command is the client's, which runs its image.

    Args:
        theirs: the variables that the container gets besides those of its image.
    """
    (image,) = (pool.spec.container_spec.image_uri for pool in job.pools if pool.index == replica.pool)
    first, *words = replica.command
    start = [] if first == ENTRY_POINT else [f"--entrypoint={first}"]
    client, buckets = context.options.containers, context.state_dir.buckets
    folders = {str(buckets.absolute()): "/gcs"}
    if metrics := theirs.get(METRIC_FILE):
        folders[str(Path(metrics).parent)] = str(Path(metrics).parent)
    command = (
        *(client, "run", "--rm", f"--name=vertex-{job_id}-{replica.name}", PLATFORM, *SHARED),
        *(f"--volume={here}:{there}" for here, there in folders.items()),
        *_user(client),
        *_variables(theirs),
        *_gpus(client, theirs.get(GPUS, "")),
        *(*start, image, *words),
    )
    through = {name: value for name, value in theirs.items() if not name.startswith(CLIENTS_OWN)}
    return replace(replica, command=command, env={**context.environ, **through})


def _variables(theirs: Mapping[str, str]) -> Iterator[str]:
    """Their values come from the client's environment, which no list of processes shows."""
    for name, value in theirs.items():
        if name != GPUS or not value:  # a container counts the GPUs that it has from 0
            yield f"--env={name}={value}" if name.startswith(CLIENTS_OWN) else f"--env={name}"


def _gpus(client: str, indices: str) -> list[str]:
    if not indices:
        return []
    if Path(client).name == "podman":
        return [f"--device=nvidia.com/gpu={index}" for index in indices.split(",")]
    return [f'--gpus="device={indices}"']


def _user(client: str) -> tuple[str, ...]:
    """Docker would leave files of root's in the folders of somebody else.

    The root of a Docker without root's rights is the person who calls it, and so is Podman's, also where it is called
    docker; Podman does not know this format.
    """
    told = _client(client, "info", "--format={{.SecurityOptions}}")
    if os.getuid() == 0 or told.returncode or "rootless" in told.stdout:
        return ()
    return f"--user={os.getuid()}:{os.getgid()}", "--env=HOME=/tmp"


def _client(client: str, *words: str, seconds: float | None = None) -> "subprocess.CompletedProcess[str]":
    return subprocess.run((client, *words), capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=seconds)

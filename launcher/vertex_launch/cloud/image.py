"""Creates the commands that build and label an image with Docker, Podman, or Cloud Build."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from vertex_launch.facts.catalog import PLATFORM
from vertex_launch.rules.containers import OF_REDUCERS, untagged

REVISION = "org.opencontainers.image.revision"  # a label
CPU = ("--build-arg=BASE_IMAGE=ubuntu:24.04", "--build-arg=REQUIREMENTS=cpu.txt", "--label=cuda=")
# In an image, print the labels that depend on its content: the plug-in, NCCL, and whether NCCL can use reducers.
LABELS = "; ".join(
    (
        r"dpkg-query --show --showformat='--label=reduction-server=${Package} ${Version}\n' google-reduction-server",
        "pip freeze | sed -n 's/^nvidia-nccl-cu[0-9]*==/--label=nccl=/p'",
        f"sed -n '$s/^/--label={OF_REDUCERS}=/p' /app/reduction-server.txt",
    )
)
DOCKER = "gcr.io/cloud-builders/docker"
SECONDS = 7200  # build timeout in Cloud Build


@dataclass(frozen=True)
class Build:
    """The names of an image to build, and the `docker build` arguments, excluding the build context."""

    names: tuple[str, ...]
    words: tuple[str, ...]

    @property
    def print_labels(self) -> tuple[str, ...]:
        """The Docker or Podman arguments that print the built image's package versions as labels."""
        return ("run", "--rm", "--network=none", "--entrypoint=sh", self.names[0], "-c", LABELS)

    @property
    def label_command(self) -> tuple[str, ...]:
        """The `docker build` arguments for a second build, which adds labels and reuses the first build's layers."""
        return (*(word for word in self.words if word not in ("--no-cache", "--pull")), "--quiet")


def build(name: str, revision: str, cpu: bool, options: Sequence[str]) -> Build:
    """Return an image's names and build arguments. If `cpu` is true, the build creates the small image without CUDA.

    The names of the small image end in -cpu. If the code has no uncommitted changes, its `revision` becomes an
    additional tag. This tag still refers to the image after the tag in vertex.toml has moved to a newer image. If the
    revision is unknown, `revision` is "".
    """
    clean = revision and not revision.endswith("-dirty")
    names = [f"{tag}-cpu" if cpu else tag for tag in (name, *([f"{untagged(name)}:{revision}"] if clean else ()))]
    flags = (f"--platform={PLATFORM}", f"--label={REVISION}={revision}", *(CPU if cpu else ()))
    return Build(tuple(names), ("build", *flags, *(f"--tag={tag}" for tag in names), *options))


def cloud_build(image: Build) -> dict[str, Any]:
    """Return the Cloud Build configuration that builds, labels, and stores the image.

    Source: Cloud Build, "Build configuration file schema".
    """
    print_labels, add_labels = (shlex.join(("docker", *words)) for words in (image.print_labels, image.label_command))
    label = f"{print_labels} | xargs --delimiter='\\n' {add_labels} ."
    steps: list[dict[str, Any]] = [
        {"args": [*image.words, "."]},
        {"entrypoint": "bash", "args": ["-c", label.replace("$", "$$")]},  # a single $ would start a substitution
    ]
    step = {"name": DOCKER, "env": ["DOCKER_BUILDKIT=1"]}
    return {"steps": [step | more for more in steps], "images": [*image.names], "timeout": f"{SECONDS}s"}

"""The words with which Docker, Podman and Cloud Build make an image and label it for `submit`."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from vertex_launch.facts.catalog import PLATFORM
from vertex_launch.rules.containers import OF_REDUCERS, untagged

REVISION = "org.opencontainers.image.revision"  # a label
CPU = ("--build-arg=BASE_IMAGE=ubuntu:24.04", "--build-arg=REQUIREMENTS=cpu.txt", "--label=cuda=")
# Print in an image the labels that depend on its content: its plug-in, its NCCL, and whether NCCL can use reducers.
LABELS = "; ".join(
    (
        r"dpkg-query --show --showformat='--label=reduction-server=${Package} ${Version}\n' google-reduction-server",
        "pip freeze | sed -n 's/^nvidia-nccl-cu[0-9]*==/--label=nccl=/p'",
        f"sed -n '$s/^/--label={OF_REDUCERS}=/p' /app/reduction-server.txt",
    )
)
DOCKER = "gcr.io/cloud-builders/docker"
SECONDS = 7200  # time limit of a build by Google


@dataclass(frozen=True)
class Build:
    """An image: its names, and the words of `docker build` but the folder."""

    names: tuple[str, ...]
    words: tuple[str, ...]

    @property
    def print_labels(self) -> tuple[str, ...]:
        """Words for an engine that print the labels of the built image's content."""
        return ("run", "--rm", "--network=none", "--entrypoint=sh", self.names[0], "-c", LABELS)

    @property
    def label_command(self) -> tuple[str, ...]:
        """Words of a second build that adds labels and takes all layers from the first one."""
        return (*(word for word in self.words if word not in ("--no-cache", "--pull")), "--quiet")


def build(name: str, revision: str, cpu: bool, options: Sequence[str]) -> Build:
    """Describe the build of an image; `cpu` makes the small one without CUDA, whose names end in -cpu.

    A clean `revision` of the code, "" if it is unknown, is a tag, too: it finds the image again after the tag in
    vertex.toml has moved on.
    """
    clean = revision and not revision.endswith("-dirty")
    names = [f"{tag}-cpu" if cpu else tag for tag in (name, *([f"{untagged(name)}:{revision}"] if clean else ()))]
    flags = (f"--platform={PLATFORM}", f"--label={REVISION}={revision}", *(CPU if cpu else ()))
    return Build(tuple(names), ("build", *flags, *(f"--tag={tag}" for tag in names), *options))


def cloud_build(image: Build) -> dict[str, Any]:
    """Return the configuration with which Google builds, labels and keeps the image.

    Source: Cloud Build, "Build configuration file schema".
    """
    print_labels, add_labels = (shlex.join(("docker", *words)) for words in (image.print_labels, image.label_command))
    label = f"{print_labels} | xargs --delimiter='\\n' {add_labels} ."
    steps: list[dict[str, Any]] = [
        {"args": [*image.words, "."]},
        {"entrypoint": "bash", "args": ["-c", label.replace("$", "$$")]},  # one $ would begin a name of Google's
    ]
    step = {"name": DOCKER, "env": ["DOCKER_BUILDKIT=1"]}
    return {"steps": [step | more for more in steps], "images": [*image.names], "timeout": f"{SECONDS}s"}

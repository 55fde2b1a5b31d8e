"""The `image`, `lock`, and `package` commands, which build an image, lock package versions, and build a package.

The `image` command builds the image on this machine or with Cloud Build. For a pythonPackageSpec, the `package` command
builds the source distribution that Google's images install. The folder's pyproject.toml defines the package contents,
and setuptools builds the package.
"""

import importlib.util
import json
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from vertex_launch import program
from vertex_launch.cli.options import Bucket, Image, Passed, Project, StandIns, state_dir
from vertex_launch.cli.output import console, errors
from vertex_launch.cloud import image as images
from vertex_launch.cloud import revision, setup
from vertex_launch.cloud.image import Build
from vertex_launch.errors import FaultError, read_text
from vertex_launch.job.state_dir import private
from vertex_launch.local.run_job import shown
from vertex_launch.local.running import containers
from vertex_launch.rules.containers import OF_REDUCERS
from vertex_launch.settings import require

KINDS = ("cpu", "push", "cloud")
HELP = "cpu, push, cloud, or docker build options without spaces, such as --no-cache. Put others after a lone --."
NO_ENGINE = "neither docker nor podman is installed on this machine; to use Cloud Build, add the `cloud` argument"
NO_KIND = "{} isn't cpu, push, or cloud; put docker build options after a lone --, as in -- --build-arg A=1"

REQUIREMENTS = Path("requirements")
# The image's platform, and the oldest Python of projects. The same versions work with Ubuntu's newer Python.
TARGET = ("--python-version=3.11", "--python-platform=x86_64-manylinux_2_28")
HOW = ("--quiet", "--no-annotate", "--index-strategy=unsafe-best-match")
NO_UV = (
    "uv, which resolves package versions, isn't installed in this Python environment; install it: {} -m pip install uv"
)

DIST = Path("dist")
BUILD = "import sys; from setuptools import build_meta; print(build_meta.build_sdist(sys.argv[1]))"
# Leftovers of setuptools aren't packed, because an outdated file list would add files to the package.
LEFT = (DIST.name, "build", "*.egg-info", "__pycache__")


@dataclass(frozen=True)
class ImageOptions(StandIns):
    words: Annotated[list[str] | None, Parameter(help=HELP, allow_leading_hyphen=True)] = None
    _: KW_ONLY
    passed: Passed = ()
    project: Project = ""
    image: Image = ""

    def act(self) -> None:
        kinds = [word for word in self.words or () if not word.startswith("-")]
        options = [word for word in self.words or () if word.startswith("-")]
        if unknown := [word for word in kinds if word not in KINDS]:
            raise FaultError(NO_KIND.format(unknown[0]))
        settings = self.settings()
        require(settings, "image")
        build = images.build(settings.image, revision.described(Path()), "cpu" in kinds, (*options, *self.passed))
        if "cloud" in kinds:
            build_by_google(build, settings.project)
        else:
            build_here(build, "push" in kinds)


def build_by_google(build: Build, project: str) -> None:
    """Build the image with Cloud Build. If `project` is empty, gcloud uses the project in its configuration."""
    config = state_dir().folder / "cloudbuild.json"
    private(config.parent)
    config.write_text(json.dumps(images.cloud_build(build)), encoding="utf-8")
    where = [f"--project={project}"] if project else []
    call(setup.gcloud(), "builds", "submit", *where, f"--config={config}", ".")


def build_here(build: Build, push: bool) -> None:
    """Build the image with the local container engine, and print whether NCCL in the image can use reducers."""
    engine = containers.installed()
    if not engine:
        raise FaultError(NO_ENGINE)
    call(engine, *build.words, ".")
    labels = printed_labels(engine, build.print_labels)
    if labels:
        call(engine, *build.label_command, *labels, ".")
    for name in build.names if push else ():
        call(engine, "push", name)
    for label in labels:
        if verdict := label.partition(f"={OF_REDUCERS}=")[2]:
            console.print(verdict)


def printed_labels(engine: str, words: Sequence[str]) -> list[str]:
    """Return the built image's labels as `docker build` options.

    If the image wasn't built from the template's Dockerfile, return an empty list.
    """
    done = subprocess.run((engine, *words), capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if done.returncode > 2:  # the engine failed; 1 and 2 come from the last command in the image
        errors.print(done.stderr)
        raise SystemExit(done.returncode)
    return [line for line in done.stdout.splitlines() if line.startswith("--label=")]


@dataclass(frozen=True)
class LockOptions:
    words: Annotated[
        list[str] | None, Parameter(help="Options for uv pip compile, such as --upgrade.", allow_leading_hyphen=True)
    ] = None
    _: KW_ONLY
    passed: Passed = ()
    custom_compile_command: Annotated[
        str, Parameter(metavar="COMMAND", help="The command shown in the lock file headers.")
    ] = f"{program.SCRIPT} lock"

    def act(self) -> None:
        if not importlib.util.find_spec("uv"):
            raise FaultError(NO_UV.format(sys.executable))
        words = (f"--custom-compile-command={self.custom_compile_command}", *(self.words or ()), *self.passed)
        resolve("lock.txt", str(REQUIREMENTS / "cuda.txt"), str(REQUIREMENTS / "trainer.txt"), *words)
        # The framework's part of the lock. The framework's image layer is rebuilt only if this file changes.
        resolve("cuda.lock.txt", str(REQUIREMENTS / "cuda.txt"), f"--constraint={REQUIREMENTS / 'lock.txt'}", *words)


def resolve(name: str, *words: str) -> None:
    path = REQUIREMENTS / name
    call(sys.executable, "-m", "uv", "pip", "compile", *TARGET, *HOW, f"--output-file={path}", *words)
    # cuda.txt and cpu.txt select the build of a version, such as 2.13.0+cu126.
    path.write_text(re.sub(r"\+\w+$", "", path.read_text(encoding="utf-8"), flags=re.MULTILINE), encoding="utf-8")


def call(*words: str) -> None:
    """Print and run a command. If the command fails, exit with its exit code.

    Ctrl-C also interrupts the command. After Ctrl-C, wait until the command exits, because gcloud must first cancel the
    build.
    """
    console.print(shlex.join(words))
    interrupts: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _: interrupts.append(number))
    try:
        code = subprocess.run(words, check=False).returncode
    finally:
        signal.signal(signal.SIGINT, before)
    if code or interrupts:
        raise SystemExit(128 - code if code < 0 else code or 130)


@dataclass(frozen=True)
class PackageOptions(StandIns):
    folder: Annotated[Path, Parameter(help="The folder that contains pyproject.toml.")] = Path()
    _: KW_ONLY
    bucket: Bucket = ""

    def act(self) -> None:
        settings = self.settings()
        require(settings, "bucket")
        made = pack(self.folder, DIST)
        copy = place(made, settings.bucket, state_dir().buckets)
        console.print(f"packed {shown(made.file)} and copied it to {shown(copy)} for the local Vertex")
        console.print(f"upload it: gcloud storage cp {shown(made.file)} {made.address(settings.bucket)}")


@dataclass(frozen=True)
class Package:
    """A source distribution file, and the folder for it in the bucket."""

    file: Path
    folder: str

    def address(self, bucket: str) -> str:
        return f"gs://{bucket}/{self.folder}/{self.file.name}"


def pack(folder: Path, dist: Path) -> Package:
    """Build a source distribution from a folder, and write it to the `dist` folder.

    The build doesn't change the source folder. Raises FaultError if setuptools can't build the package.
    """
    description = folder / "pyproject.toml"
    name = _name(description)
    with tempfile.TemporaryDirectory() as stand_in:
        for path in {*folder.glob("[!.]*")} - {path for pattern in LEFT for path in folder.glob(pattern)}:
            _link(path.absolute(), Path(stand_in, path.name))
        command = [sys.executable, "-c", BUILD, str(dist.absolute())]
        done = subprocess.run(command, cwd=stand_in, capture_output=True, text=True)
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise FaultError(f"{description}: setuptools can't build a package from this folder: {reason}")
    return Package(dist / done.stdout.splitlines()[-1], f"{name}/packages")


def place(package: Package, bucket: str, buckets: Path) -> Path:
    """Copy the package to the folder that the local Vertex uses as the bucket."""
    copy = buckets / bucket / package.folder / package.file.name
    copy.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(package.file, copy)
    return copy


def _link(path: Path, place: Path) -> None:
    try:
        place.symlink_to(path)
    except OSError:  # Windows requires a privilege for symbolic links
        shutil.copytree(path, place) if path.is_dir() else shutil.copyfile(path, place)


def _name(path: Path) -> str:
    try:
        return str(tomllib.loads(read_text(path))["project"]["name"])
    except (tomllib.TOMLDecodeError, KeyError, TypeError) as error:
        raise FaultError(
            f"{path}: the file doesn't describe a package ({error}); add a [project] table with a name"
        ) from None

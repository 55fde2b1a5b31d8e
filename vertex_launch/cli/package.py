"""The command `package`: pack a folder as a Python package for jobs with a pythonPackageSpec.

Google's images install the package. The folder's pyproject.toml says what is packed; setuptools packs it.
"""

import shutil
import subprocess
import sys
import tempfile
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from vertex_launch.cli.options import Bucket, StandIns, state_dir
from vertex_launch.cli.output import console
from vertex_launch.errors import FaultError, read_text
from vertex_launch.local.run_job import shown
from vertex_launch.settings import require

DIST = Path("dist")
BUILD = "import sys; from setuptools import build_meta; print(build_meta.build_sdist(sys.argv[1]))"
# Leftovers of setuptools in a folder, which are not packed: an old list of files would add its files.
LEFT = (DIST.name, "build", "*.egg-info", "__pycache__")


@dataclass(frozen=True, kw_only=True)
class PackageOptions(StandIns):
    """Pack a folder for a job with a pythonPackageSpec, and say how to send the package to the bucket."""

    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="The folder with pyproject.toml.")] = Path()
    bucket: Bucket = ""

    def act(self) -> None:
        settings = self.settings()
        require(settings, "bucket")
        made = build(self.folder, DIST)
        copy = place(made, settings.bucket, state_dir().buckets)
        console.print(f"{shown(made.file)}, and for the local Vertex {shown(copy)}")
        console.print(f"send it: gcloud storage cp {shown(made.file)} {made.address(settings.bucket)}")


@dataclass(frozen=True)
class Package:
    """A source package: the file, and where jobs find it."""

    file: Path
    folder: str  # in the bucket

    def address(self, bucket: str) -> str:
        return f"gs://{bucket}/{self.folder}/{self.file.name}"


def build(folder: Path, dist: Path) -> Package:
    """Pack a folder into `dist`, and write nothing in the folder; raises FaultError if setuptools refuses it."""
    description = folder / "pyproject.toml"
    name = _name(description)
    with tempfile.TemporaryDirectory() as stand_in:
        for path in {*folder.glob("[!.]*")} - {path for pattern in LEFT for path in folder.glob(pattern)}:
            _link(path.absolute(), Path(stand_in, path.name))
        command = [sys.executable, "-c", BUILD, str(dist.absolute())]
        done = subprocess.run(command, cwd=stand_in, capture_output=True, text=True)
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise FaultError(f"{description}: setuptools cannot pack this folder: {reason}")
    return Package(dist / done.stdout.splitlines()[-1], f"{name}/packages")


def place(package: Package, bucket: str, buckets: Path) -> Path:
    """Put the package where the local Vertex looks for it: in the folder that stands for the bucket."""
    copy = buckets / bucket / package.folder / package.file.name
    copy.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(package.file, copy)
    return copy


def _link(path: Path, place: Path) -> None:
    try:
        place.symlink_to(path)
    except OSError:  # Windows asks for a privilege
        shutil.copytree(path, place) if path.is_dir() else shutil.copyfile(path, place)


def _name(path: Path) -> str:
    try:
        return str(tomllib.loads(read_text(path))["project"]["name"])
    except (tomllib.TOMLDecodeError, KeyError, TypeError) as error:
        raise FaultError(f"{path}: describes no package ({error}); it needs a table [project] with a name") from None

"""Packs trainer/ as a Python package for jobs with a pythonPackageSpec, which install it in one of Google's images.

pyproject.toml describes the package. It asks for no more of the framework than the image lacks.
"""

import shutil
import subprocess
import sys
import tempfile
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vertex_launch.errors import FaultError, read_text

DESCRIPTION = "pyproject.toml"
SOURCES, REQUIREMENTS = "trainer", "requirements"
DIST = "dist"
BUILD = "import sys; from setuptools import build_meta; build_meta.build_sdist(sys.argv[1])"


class PackError(FaultError):
    """The package cannot be made."""


@dataclass(frozen=True)
class Package:
    """A source package: the file, and where jobs find it."""

    file: Path
    folder: str  # in the bucket

    def address(self, bucket: str) -> str:
        return f"gs://{bucket}/{self.folder}/{self.file.name}"


def build(project: Path) -> Package:
    """Make the package anew, in `dist/`.

    Raises:
        PackError: pyproject.toml or trainer/ are not there, or setuptools refuses them.
    """
    described = _described(project / DESCRIPTION)
    dist = (project / DIST).absolute()
    # In a copy: setuptools leaves a folder beside what it packs, and packs whatever an old one lists.
    with tempfile.TemporaryDirectory() as copy:
        for folder in (SOURCES, REQUIREMENTS):
            shutil.copytree(project / folder, Path(copy, folder), ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copyfile(project / DESCRIPTION, Path(copy, DESCRIPTION))
        command = [sys.executable, "-c", BUILD, str(dist)]
        done = subprocess.run(command, cwd=copy, capture_output=True, text=True)
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise PackError(f"{DESCRIPTION}: setuptools cannot pack {SOURCES}/: {reason}")
    name, version = described["name"], described["version"]
    return Package(dist / f"{name.replace('-', '_')}-{version}.tar.gz", f"{name}/packages")


def place(package: Package, bucket: str, buckets: Path) -> Path:
    """Put the package where the local Vertex looks for it: in the folder that stands for the bucket."""
    copy = buckets / bucket / package.folder / package.file.name
    copy.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(package.file, copy)
    return copy


def _described(path: Path) -> dict[str, Any]:
    try:
        return dict(tomllib.loads(read_text(path, PackError))["project"])
    except (tomllib.TOMLDecodeError, KeyError) as error:
        raise PackError(f"{path}: describes no package ({error}); it needs a table [project]") from None

"""Bake projects with the real command, in a home of their own."""

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PROJECT = "{{cookiecutter.project_slug}}"
CACHES = shutil.ignore_patterns("__pycache__", ".*_cache", ".nox", ".venv", ".vertex")


@dataclass(frozen=True)
class Baked:
    """What one run of the command said and where it was to write."""

    status: int
    stdout: str
    stderr: str
    folder: Path

    @property
    def project(self) -> Path:
        """The generated project; fails with the command's own words when there is none."""
        assert self.status == 0, self.stdout + self.stderr
        (project,) = self.folder.iterdir()
        return project


def copy_template(target: Path) -> Path:
    """The template as a fresh clone has it, without the caches of checks that ran in place."""
    target.mkdir(parents=True)
    shutil.copy(ROOT / "cookiecutter.json", target)
    for folder in ("hooks", PROJECT):
        shutil.copytree(ROOT / folder, target / folder, ignore=CACHES)
    return target


def cookiecutter(tmp: Path, *arguments: str, typed: str = "") -> Baked:
    """Run the command in tmp/work/here; whatever it may leave behind lies under tmp."""
    here, home, scratch = tmp / "work" / "here", tmp / "home", tmp / "scratch"
    for folder in (here, home, scratch):
        folder.mkdir(parents=True, exist_ok=True)
    environment = os.environ | {"HOME": str(home), "USERPROFILE": str(home), "TMPDIR": str(scratch)}
    run = subprocess.run(
        [sys.executable, "-m", "cookiecutter", str(tmp / "template"), *arguments],
        cwd=here,
        env=environment,
        input=typed,
        capture_output=True,
        encoding="utf-8",
    )
    return Baked(run.returncode, run.stdout, run.stderr, here)


def bake(tmp: Path, **answers: str) -> Baked:
    """Bake the template in tmp with these answers and defaults for the rest."""
    if not (tmp / "template").exists():
        copy_template(tmp / "template")
    return cookiecutter(tmp, "--no-input", *(f"{question}={answer}" for question, answer in answers.items()))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The slow tests first, so that all cores have work until the end."""
    items.sort(key=lambda item: "slow" not in item.keywords)

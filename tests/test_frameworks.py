"""The generated project passes its own checks and trains: each framework, for real."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from conftest import bake

SESSIONS = ("lint", "types", "check", "local")
# The local Vertex is the same in both projects, byte for byte, and knows nothing of frameworks: once is enough.
TESTS: dict[str, tuple[str, ...]] = {"pytorch": (), "tensorflow": ("--", "-m", "not emulator")}
MINUTES = 20


@pytest.fixture(
    scope="module",
    # All tests of a framework in one process: they share its project.
    params=[pytest.param(name, marks=pytest.mark.xdist_group(name)) for name in TESTS],
)
def framework(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def project(framework: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A freshly baked project; where BAKED says, its environment, the slow part, is kept from run to run."""
    folder = Path(os.environ.get("BAKED", tmp_path_factory.mktemp("baked"))) / framework
    for environment in folder.glob("work/here/*/.venv"):
        environment.rename(folder / "venv")
    for old in ("template", "work"):
        shutil.rmtree(folder / old, ignore_errors=True)
    baked = bake(folder, framework=framework).project
    if (folder / "venv").exists():
        (folder / "venv").rename(baked / ".venv")
    return baked


def run(project: Path, *command: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [*command],
        cwd=project,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=60 * MINUTES,
    )


@pytest.mark.slow
def test_the_generated_project_passes_its_own_tests(framework: str, project: Path) -> None:
    done = run(project, sys.executable, "-m", "nox", "--session", "tests", *TESTS[framework])
    print(done.stdout)
    assert done.returncode == 0


@pytest.mark.slow
def test_the_generated_project_passes_its_own_checks_and_trains(project: Path) -> None:
    done = run(project, sys.executable, "-m", "nox", "--session", *SESSIONS)
    print(done.stdout)
    assert done.returncode == 0
    assert "Job succeeded" in done.stdout
    accuracy = float(done.stdout.rpartition("accuracy ")[2].partition(";")[0])
    assert accuracy >= 0.96

    shown = run(
        project,
        *(str(project / ".venv/bin/python"), "-m", "launch", "run", "jobs/reduction-server.yaml"),
        *("--max-replicas", "3", "--", "--steps", "60", "--warmup", "10"),
    )
    print(shown.stdout)
    assert shown.returncode == 0
    assert "3 replicas on this machine" in shown.stdout
    assert "not started: workerpool2-0 to workerpool2-9, reducers" in shown.stdout

"""The generated project passes its own checks and trains: each framework, for real."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from conftest import ROOT, bake

SESSIONS = ("lint", "types", "check", "local")
# The local Vertex is the same in both projects, byte for byte, and knows nothing of frameworks: once is enough.
TESTS: dict[str, tuple[str, ...]] = {"pytorch": (), "tensorflow": ("--", "-m", "not emulator")}
MINUTES = 20
MACHINES = json.loads((ROOT / "cookiecutter.json").read_text(encoding="utf-8"))["worker_machine"]


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
def test_there_is_nothing_to_find_in_the_job_files_of_any_preset(framework: str, project: Path, tmp_path: Path) -> None:
    assert run(project, sys.executable, "-m", "nox", "--session", "check").returncode == 0  # makes its environment
    python = str(project / ".venv/bin/python")
    for machine in MACHINES:
        for count in ("2", "5"):
            folder = tmp_path / f"{machine}-{count}"
            answers = {"framework": framework, "worker_machine": machine, "machine_count": count}
            baked = bake(folder, **answers).project
            jobs = sorted(path.name for path in (baked / "jobs").glob("*.yaml"))
            assert ("reduction-server.yaml" in jobs) == (machine != "a3-highgpu-8g")
            done = run(baked, python, "-m", "launch", "check", "--strict", *(f"jobs/{name}" for name in jobs))
            assert done.returncode == 0, done.stdout
            assert done.stdout.splitlines()[-len(jobs) :] == [f"jobs/{name}: ok" for name in jobs]


@pytest.mark.slow
def test_the_page_of_the_rules_is_what_they_say(project: Path) -> None:
    assert run(project, sys.executable, "-m", "nox", "--session", "check").returncode == 0  # makes its environment
    page = run(project, str(project / ".venv/bin/python"), "-m", "launch.rules").stdout
    assert page == (ROOT / "docs/rules.md").read_text(encoding="utf-8")  # nox -s docs writes it anew


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

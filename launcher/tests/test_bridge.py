"""The API for Python, and what `check` says of a project that another release of the launcher made."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

import vertex_launch
from launcher.tests.running import SETTINGS, SOURCE, job
from vertex_launch.errors import FaultError
from vertex_launch.rules import check


def test_a_job_file_is_asked_what_each_replica_gets(project: Path) -> None:
    chief, *workers = vertex_launch.replicas(project / "jobs/workers.yaml")
    assert [one.name for one in (chief, *workers)] == ["workerpool0-0", "workerpool1-0", "workerpool1-1"]
    assert chief.command[:3] == ("python", "-m", "trainer.task")
    assert chief.env["MASTER_ADDR"] == "cmle-training-workerpool0-0"
    assert all(one.trains and one.env["WORLD_SIZE"] == "3" for one in (chief, *workers))


def test_the_addresses_of_the_replicas_may_be_given(project: Path) -> None:
    (alone,) = vertex_launch.replicas(str(project / "jobs/single.yaml"), lambda pool, index: f"10.0.{pool}.{index}:1")
    assert '"10.0.0.0:1"' in alone.env["CLUSTER_SPEC"]


def test_a_search_is_asked_what_its_first_trial_gets(project: Path) -> None:
    chief, worker = vertex_launch.replicas(project / "jobs/tuning.yaml")
    assert chief.env["CLOUD_ML_TRIAL_ID"] == "1"
    assert any(word.startswith("--learning_rate=") for word in chief.command)
    assert worker.command == chief.command


def test_a_file_without_a_job_raises_what_check_says(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text("workerPoolSpec: []\n")
    with pytest.raises(FaultError, match='unknown key "workerPoolSpec"; did you mean workerPoolSpecs'):
        vertex_launch.replicas(tmp_path / "job.yaml")


def test_an_unknown_name_of_the_package_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'vertex_launch' has no attribute 'replica'"):
        vertex_launch.replica  # noqa: B018


@pytest.mark.parametrize(
    ("made_with", "installed", "said"),
    [
        ("", "0.2.0", ""),
        ("0.2.0", "0.2.0", ""),
        ("0.2.0", "0.10.0", ""),
        ("0.1.0", "0.2.0", "which removed the vertex_launch.replicas module. "),
        ("0.1.9", "0.10.0", "which removed the vertex_launch.replicas module. "),
        ("0.10.0", "0.2.0", "generated with vertex-launch 0.10.0, but 0.2.0 is installed; install 0.10.0 or newer"),
    ],
)
def test_a_release_is_told_what_it_lacks_of_the_one_that_made_the_project(
    made_with: str, installed: str, said: str
) -> None:
    notice = check.release_notice(made_with, installed)
    assert said in notice
    assert bool(notice) == bool(said)


def test_check_says_so_and_passes(tmp_path: Path) -> None:
    (tmp_path / "vertex.toml").write_text(f'launcher = "0.1.0"\n{SETTINGS}')
    (tmp_path / "job.yaml").write_text(json.dumps(job(command=["true"])))
    command = [sys.executable, "-m", "vertex_launch", "check", "job.yaml"]
    done = subprocess.run(command, cwd=tmp_path, env={"PYTHONPATH": str(SOURCE)}, capture_output=True, text=True)
    assert done.returncode == 0
    assert "vertex.toml: this project was generated with vertex-launch 0.1.0, but " in done.stderr

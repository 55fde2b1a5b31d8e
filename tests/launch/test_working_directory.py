"""The working directory of a replica: the project's files, under whatever it writes itself."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.launch.running import SETTINGS, SOURCE, ends_together, job
from vertex_launch.local.running import init_shim
from vertex_launch.local.running.namespaces import isolation

GONE = "in the working directory ended with this replica, as in a container; write below /gcs or to AIP_MODEL_DIR"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    if not isolation(tmp_path / ".vertex/gcs").layered:
        pytest.skip("this system permits no overlays")
    (tmp_path / "vertex.toml").write_text(SETTINGS)
    (tmp_path / "data.txt").write_text("the project's")
    return tmp_path


def run(project: Path, script: str, workers: int = 0) -> list[str]:
    """The lines of a job's replicas, sorted, which all run this script."""
    (pool,) = job(command=["python", "-c", script])["workerPoolSpecs"]
    pools = [pool, {**pool, "replicaCount": workers}] if workers else [pool]
    (project / "job.yaml").write_text(yaml.safe_dump({"workerPoolSpecs": pools}))
    command = [sys.executable, "-m", "vertex_launch", "run", "job.yaml"]
    environ = os.environ | {"PYTHONPATH": str(SOURCE), "COLUMNS": "300"}
    done = subprocess.run(command, cwd=project, env=environ, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
    return sorted(line for line in done.stdout.splitlines() if line.startswith("[workerpool"))


def test_what_a_replica_changes_in_the_project_is_gone_with_it_and_named(project: Path) -> None:
    files = sorted(path.name for path in project.iterdir())
    script = """
import pathlib
pathlib.Path("data.txt").write_text("another")
pathlib.Path("vertex.toml").unlink()
pathlib.Path("a/b").mkdir(parents=True)
for number in range(3): pathlib.Path(f"a/b/{number}").touch()
print(pathlib.Path("data.txt").read_text())
"""
    assert run(project, script) == [
        f"[workerpool0-0] a/b/0, a/b/1, a/b/2 and 1 more {GONE} what is to stay",
        "[workerpool0-0] another",
    ]
    assert sorted(path.name for path in project.iterdir()) == sorted([*files, "job.yaml"])
    assert (project / "data.txt").read_text() == "the project's"
    assert not [*init_shim.SCRATCH.glob(f"replica-*/written/{project.name}")]


def test_a_replica_does_not_see_what_the_others_write(project: Path) -> None:
    write = "import os, pathlib\nwritten = pathlib.Path('written', os.environ['RANK'])\nwritten.mkdir(parents=True)"
    script = write + ends_together(3) + "print(*os.listdir('written'))"
    assert run(project, script, workers=2) == ["[workerpool0-0] 0"]


def test_hidden_folders_keep_what_is_written_to_them(project: Path) -> None:
    (project / ".cache").mkdir()
    assert run(project, "open('.cache/compiled', 'w').close()") == []
    assert (project / ".cache/compiled").exists()


def test_log_files_of_the_image_are_printed_at_the_end(project: Path) -> None:
    script = """
for name in ("output1.log", "other"):
    print("of", name, file=open(f"/var/log-storage/{name}", "w"))
"""
    assert run(project, script) == ["[workerpool0-0] of output1.log"]

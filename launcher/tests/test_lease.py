"""A second job on one output folder: the launcher looks at the lease that the template's own trainer holds."""

import contextlib
import itertools
import json
import os
import platform
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from launcher.tests.running import DEADLINE, SETTINGS, SOURCE, TEMPLATE, eventually, job, processes
from launcher.tests.vertex import custom_job, script, service
from vertex_launch.job import lease

# A chief that holds the lease as the trainer does, until there is a file GO.
HOLD = """
import os, pathlib, sys, time
from trainer.vertex import lease, log, storage
def hold():
    with lease.held(storage.from_env(os.environ), is_chief=True):
        print("holds", flush=True)
        while not pathlib.Path({go!r}).exists(): time.sleep(0.05)
        {end}
sys.exit(log.exit_code(hold))
"""
ENVIRON = os.environ | {"PYTHONPATH": f"{SOURCE}:{TEMPLATE}"}
IN_USE = ".vertex/gcs/b/run/checkpoints has been in use by job "
CURE = "choose another output folder, or wait until that job ends"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"  # of which replicas see a copy
    (folder / ".vertex").mkdir(parents=True)
    (folder / "vertex.toml").write_text(SETTINGS)
    write(folder)
    return folder


def write(project: Path, end: str = "pass", output: str = "gs://b/run") -> None:
    command = [*script(HOLD.format(go=str(project / ".vertex/GO"), end=end))]
    held = job(command=command) | {"baseOutputDirectory": {"outputUriPrefix": output}}
    (project / "job.yaml").write_text(yaml.safe_dump(held))


@contextlib.contextmanager
def running(project: Path) -> Iterator["subprocess.Popen[str]"]:
    """Yield the launcher of a job that holds its output folder; nothing outlives the block."""
    words = [sys.executable, "-m", "vertex_launch", "run", "job.yaml"]
    with subprocess.Popen(words, cwd=project, env=ENVIRON, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert eventually(lambda: any(project.glob(".vertex/gcs/b/**/lease/*.1")))
            yield process
        finally:
            process.kill()


def launch(project: Path, *words: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "vertex_launch", *words]
    done = subprocess.run(command, cwd=project, env=ENVIRON, capture_output=True, text=True, timeout=DEADLINE)
    assert "Traceback" not in done.stdout + done.stderr
    return done


@pytest.mark.parametrize("words", [(), pytest.param(("--fresh",), marks=pytest.mark.proof)], ids=["", "--fresh"])
def test_a_second_run_is_refused_and_the_first_ends_well(project: Path, words: tuple[str, ...]) -> None:
    with running(project) as first:
        (id,) = (path.name for path in (project / ".vertex/jobs").iterdir())
        done = launch(project, "run", "job.yaml", *words)
        assert done.returncode == 1
        line = done.stderr.splitlines()[-1]
        assert line.startswith(f"job.yaml: baseOutputDirectory.outputUriPrefix: {IN_USE}{id} on ")
        assert " UTC (renewed " in line
        assert line.endswith(f" s ago); {CURE}")
        assert "holds" not in done.stdout
        (project / ".vertex/GO").touch()
        assert first.wait(DEADLINE) == 0
    assert launch(project, "run", "job.yaml", *words).returncode == 0


def test_a_folder_above_that_of_a_running_job_is_not_emptied(project: Path) -> None:
    write(project, output="gs://b/all/run")
    with running(project) as first:
        write(project, output="gs://b/all")
        done = launch(project, "run", "job.yaml", "--fresh")
        assert ".vertex/gcs/b/all/run/checkpoints has been in use by job " in done.stderr
        (project / ".vertex/GO").touch()
        assert first.wait(DEADLINE) == 0


def test_a_job_that_was_killed_does_not_hold_up_the_next_one(project: Path) -> None:
    with running(project) as first:
        first.kill()
        assert eventually(lambda: not processes(str(project / ".vertex/GO")))
        assert any(project.glob(".vertex/gcs/b/run/checkpoints/lease/*.json"))
        (project / ".vertex/GO").touch()
        done = launch(project, "run", "job.yaml")
        assert done.returncode == 0, done.stderr
        assert "whether job" not in done.stdout  # it waited for nobody


def test_a_restart_of_the_job_is_not_refused(project: Path) -> None:
    again = "pathlib.Path('LOST').exists() or (pathlib.Path('LOST').touch(), os._exit(75))"
    write(project, again.replace("'LOST'", repr(str(project / ".vertex/LOST"))))
    (project / ".vertex/GO").touch()
    done = launch(project, "run", "job.yaml", "--restarts")
    assert done.returncode == 0, done.stdout
    assert done.stdout.count("holds") == 2
    assert "whether job" not in done.stdout


def test_a_claim_of_another_machine_counts_if_it_is_renewed_meanwhile(tmp_path: Path) -> None:
    folder = tmp_path / lease.FOLDER
    folder.mkdir(parents=True)
    claim = {"job": "far", "host": "elsewhere", "since": "2026-11-27T08:31:02+00:00", "lock": "another boot:1"}
    (folder / "far.json").write_text(json.dumps(claim))
    (folder / "none.json").write_text("[]")
    assert [*lease.in_use(tmp_path)] == []
    assert [*lease.in_use(tmp_path, seconds=1)] == []
    ended = threading.Event()

    def renew() -> None:
        for number in itertools.takewhile(lambda _: not ended.wait(0.05), itertools.count(1)):
            (folder / f"far.{number}").touch()

    thread = threading.Thread(target=renew)
    thread.start()
    try:
        (finding,) = lease.in_use(tmp_path, seconds=DEADLINE)
    finally:
        ended.set()
        thread.join()
    assert "/checkpoints has been in use by job far on elsewhere since 2026-11-27 08:31 UTC (renewed " in finding.fault


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux names a boot")
def test_a_claim_from_before_this_machine_was_booted_is_free_unless_it_was_renewed_since(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / lease.FOLDER
    folder.mkdir(parents=True)
    claim = {"job": "far", "host": platform.node(), "since": "2026-11-27T08:31:02+00:00", "lock": "another boot:1"}
    (folder / "far.json").write_text(json.dumps(claim))
    (folder / "far.7").touch()
    assert [*lease.in_use(tmp_path, seconds=1)] == []
    assert capsys.readouterr().err == (
        f"{tmp_path}/checkpoints: checking for up to 1 s whether job far on {platform.node()}"
        " still writes to this folder\n"
    )
    for file in folder.iterdir():
        os.utime(file, (0, 0))
    assert [*lease.in_use(tmp_path, seconds=DEADLINE)] == []
    assert capsys.readouterr().err == ""


def test_check_warns_of_a_job_that_writes_there(project: Path) -> None:
    with running(project):
        done = launch(project, "check", "job.yaml")
        (line,) = [line for line in done.stderr.splitlines() if line.endswith("(output-in-use)")]
        assert f": warning: baseOutputDirectory.outputUriPrefix: {IN_USE}" in line
        assert done.returncode == 0
        (project / ".vertex/GO").touch()
    assert "output-in-use" not in launch(project, "check", "job.yaml").stderr


def test_the_service_ends_a_job_whose_folder_another_one_has(project: Path) -> None:
    with running(project), service(project) as vertex:
        second = custom_job("true")
        second["jobSpec"]["baseOutputDirectory"] = {"outputUriPrefix": "gs://b/run"}
        ended = vertex.wait(vertex.create(second), "FAILED")
        assert IN_USE in ended["error"]["message"]
        assert ended["error"]["message"].endswith(CURE)
        (project / ".vertex/GO").touch()

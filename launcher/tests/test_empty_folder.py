"""The launcher beside one job file and nothing else: no vertex.toml, no trainer, no template."""

import ast
import os
import re
import signal
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from launcher.tests.running import while_fresh
from tests.conftest import LAUNCHER
from vertex_launch.settings import VARIABLES

PACKAGE = LAUNCHER / "vertex_launch"
SECONDS = 240  # until a command is killed; none takes more than a few
POOL = {
    "machineSpec": {"machineType": "n1-standard-4"},
    "replicaCount": 1,
    "containerSpec": {"imageUri": "registry/mine:1", "command": [sys.executable, "-c", "print('trained')"]},
}
JOB = {
    "workerPoolSpecs": [POOL],
    "scheduling": {"timeout": "60s", "restartJobOnWorkerRestart": True},
    "baseOutputDirectory": {"outputUriPrefix": "gs://anybody/run"},
}

DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with one job file."""
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(JOB))
    return tmp_path


def environ(**more: str) -> dict[str, str]:
    ours = {name for names in VARIABLES.values() for name in names}
    kept = {name: value for name, value in os.environ.items() if name not in ours}
    return kept | {"PYTHONPATH": str(PACKAGE.parent), "GOOGLE_APPLICATION_CREDENTIALS": "/nowhere.json"} | more


def launch(folder: Path, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "vertex_launch", *words],
        cwd=folder,
        env=environ(**variables),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )


def test_check_finds_nothing_where_nothing_is_known(folder: Path) -> None:
    done = launch(folder, "check", "--strict", "job.yaml")
    assert (done.returncode, done.stdout, while_fresh(done.stderr)) == (0, "job.yaml: ok\n", "")


def test_check_compares_with_what_flags_and_variables_say(folder: Path) -> None:
    done = launch(folder, "check", "job.yaml", "--region", "us-central", "--bucket", "mine", VERTEX_IMAGE="mine:1")
    assert done.returncode == 1
    for said in ('"us-central" from --region', "the bucket that --bucket", "the image that VERTEX_IMAGE specifies"):
        assert said in done.stderr


def test_plan_needs_no_project_and_no_region(folder: Path) -> None:
    done = launch(folder, "plan", "job.yaml", "--gradient-bytes", "1e9")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("job.yaml\n")
    assert "--consumer=projects/PROJECT " in done.stdout
    assert str(PACKAGE / "facts/machines.yaml") in done.stdout.replace("\n", "")


def test_run_runs_the_job(folder: Path) -> None:
    done = launch(folder, "run", "job.yaml")
    assert done.returncode == 0, done.stderr
    assert "trained" in done.stdout
    assert "Job succeeded" in done.stdout


def test_a_variable_names_the_folder_of_the_local_state_for_all_commands(folder: Path) -> None:
    (folder / "pyproject.toml").write_text('[project]\nname = "mine"\nversion = "2"\n')
    for words in (["package", "--bucket", "mine"], ["run", "job.yaml"]):
        done = launch(folder, *words, VERTEX_STATE_DIR="state")
        assert done.returncode == 0, done.stderr
    assert {path.name for path in (folder / "state/gcs").iterdir()} == {"mine", "anybody"}
    assert not (folder / ".vertex").exists()


@pytest.fixture
def endpoint(folder: Path) -> Iterator[str]:
    """A local Vertex in that folder."""
    command = [sys.executable, "-u", "-m", "vertex_launch", "emulate", "--port", "0"]
    service = subprocess.Popen(command, cwd=folder, env=environ(), stdout=subprocess.PIPE, text=True)
    assert service.stdout
    try:
        found = re.search(r"http://127\.0\.0\.1:\d+", service.stdout.readline())
        assert found
        yield found[0]
    finally:
        service.send_signal(signal.SIGINT)
        try:
            service.communicate(timeout=SECONDS)
        finally:
            service.kill()


def test_emulate_takes_the_job_that_submit_sends_without_a_project(folder: Path, endpoint: str) -> None:
    done = launch(folder, "submit", "--yes", "job.yaml", VERTEX_ENDPOINT=endpoint)
    assert done.returncode == 0, done.stderr
    assert re.search("sent: projects/[^/]+/locations/us-central1/customJobs/[0-9]+\n", done.stdout)


def test_submit_to_google_says_what_is_missing_and_how_to_give_it(folder: Path) -> None:
    done = launch(folder, "submit", "job.yaml")
    assert (done.returncode, done.stdout) == (1, "")
    project, region = done.stderr.splitlines()
    assert project.startswith("the project isn't set; add --project, set VERTEX_PROJECT, or write project = ")
    assert region.startswith("the region isn't set; add --region, set VERTEX_REGION, or write region = ")


def test_submit_looks_for_credentials_before_it_asks(folder: Path) -> None:
    done = launch(folder, "submit", "job.yaml", "--project", "demo", CLOUDSDK_AI_REGION="us-central1")
    assert done.returncode == 1
    assert done.stderr.startswith("Google Cloud: File /nowhere.json was not found; ")
    assert done.stderr.endswith("log in with: gcloud auth login --update-adc\n")
    assert "Submit the job?" not in done.stdout
    assert "Traceback" not in done.stderr


def test_package_packs_the_folder_that_it_is_told_and_leaves_nothing_in_it(tmp_path: Path) -> None:
    source, here = tmp_path / "source", tmp_path / "here"
    (source / "mine").mkdir(parents=True)
    here.mkdir()
    (source / "mine/__init__.py").write_text("")
    (source / "pyproject.toml").write_text('[project]\nname = "my-trainer"\nversion = "2"\n')
    before = sorted(source.rglob("*"))
    done = launch(here, "package", str(source), "--bucket", "mine")
    assert done.returncode == 0, done.stderr
    assert "gcloud storage cp dist/my_trainer-2.tar.gz gs://mine/my-trainer/packages/my_trainer-2.tar.gz" in done.stdout
    assert sorted(source.rglob("*")) == before
    with tarfile.open(here / "dist/my_trainer-2.tar.gz") as archive:
        assert archive.getmember("my_trainer-2/mine/__init__.py").isfile()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--bucket", "mine"], "pyproject.toml: the file doesn't exist"),
        ([], "the bucket isn't set; add --bucket, set VERTEX_BUCKET, or write bucket = "),
    ],
)
def test_package_says_what_it_misses(words: list[str], said: str, folder: Path) -> None:
    done = launch(folder, "package", *words)
    assert done.returncode == 1
    assert said in done.stderr


def test_no_text_of_the_package_speaks_of_a_session_of_the_template() -> None:
    for path in sorted(PACKAGE.rglob("*")):
        if path.suffix in {".py", ".yaml", ".html"}:
            assert not re.search(r"\bnox\b", path.read_text(encoding="utf-8")), path


def test_no_message_names_a_file_that_only_a_project_has() -> None:
    for path in sorted(PACKAGE.rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        docs = {ast.get_docstring(node, clean=False) for node in ast.walk(tree) if isinstance(node, DOCUMENTED)}
        texts = [node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)]
        messages = [text for text in texts if isinstance(text, str) and " " in text and text not in docs]
        assert not [text for text in messages if re.search(r"\b(jobs|requirements|vertex_launch)/", text)], path

"""A launcher without the libraries of its extras checks, plans and runs, and asks for a library where one is needed."""

import os
import subprocess
import sysconfig
import venv
from pathlib import Path
from typing import Any

import pytest
import yaml

from launcher.tests.running import DEADLINE, SETTINGS, SOURCE, job
from launcher.tests.vertex import PARENT, custom_job, service

EXTRAS = ("matplotlib", "numpy", "optuna", "tensorboard")  # numpy comes with the others
BOARD = f"{PARENT}/tensorboards/1"


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of an environment that has all libraries of this one but those of the extras."""
    home = tmp_path_factory.mktemp("environment")
    venv.create(home)
    (packages,) = home.glob("lib/python*/site-packages")
    for library in Path(sysconfig.get_path("purelib")).iterdir():
        if not library.name.startswith(EXTRAS):
            (packages / library.name).symlink_to(library)
    return home / "bin/python"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a job and a search."""
    (tmp_path / "vertex.toml").write_text(SETTINGS)
    spec = job(command=["python", "-c", "print('trained')"])
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(spec))
    (tmp_path / "search.yaml").write_text(yaml.safe_dump(search(spec)))
    return tmp_path


def search(spec: dict[str, Any], **study: Any) -> dict[str, Any]:
    rate = {"parameterId": "rate", "doubleValueSpec": {"minValue": 0.1, "maxValue": 0.2}}
    whole = {"metrics": [{"metricId": "loss"}], "parameters": [rate], **study}
    counts = {"maxTrialCount": 1, "parallelTrialCount": 1}
    return {"displayName": "search", "studySpec": whole, **counts, "trialJobSpec": spec}


def launch(python: Path, folder: Path, *words: str) -> "subprocess.CompletedProcess[str]":
    environ = os.environ | {"PYTHONPATH": str(SOURCE)}
    return subprocess.run(
        [str(python), *words], cwd=folder, env=environ, capture_output=True, text=True, timeout=DEADLINE
    )


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("check job.yaml search.yaml", "job.yaml: ok"),
        ("plan job.yaml --gradient-bytes 1e9 --step-seconds 0.2", "n1-standard-4"),
        ("run job.yaml", "Job succeeded"),
    ],
)
def test_a_launcher_without_extras_works(python: Path, folder: Path, words: str, said: str) -> None:
    done = launch(python, folder, "-m", "vertex_launch", *words.split())
    assert (done.returncode, said in done.stdout) == (0, True), done.stdout + done.stderr


@pytest.mark.parametrize(
    ("words", "place", "library", "extra"),
    [
        ("plan job.yaml --chart plan.svg", "--chart", "matplotlib", "plots"),
        ("plan job.yaml --run output", "--run", "tensorboard", "tensorboard"),
        ("tensorboard job", "the command tensorboard", "tensorboard", "tensorboard"),
        ("run search.yaml", "studySpec", "optuna", "search"),
    ],
)
def test_what_needs_an_extra_asks_for_it(
    python: Path, folder: Path, words: str, place: str, library: str, extra: str
) -> None:
    done = launch(python, folder, "-m", "vertex_launch", *words.split())
    assert (done.returncode, done.stderr.splitlines()[-1]) == (1, asks(place, library, extra))
    assert "Traceback" not in done.stderr


def asks(place: str, library: str, extra: str) -> str:
    return f"{place}: {library} is required, but it isn't installed; run: pip install 'vertex-launch[{extra}]'"


def test_the_api_for_python_asks_for_it(python: Path, folder: Path) -> None:
    done = launch(python, folder, "-c", "import vertex_launch; vertex_launch.replicas('search.yaml')")
    assert done.stderr.endswith(f"search.yaml: {asks('studySpec', 'optuna', 'search')}\n")


def test_a_service_refuses_what_needs_an_extra_and_searches_a_grid(python: Path, tmp_path: Path) -> None:
    report = """import os, pathlib
pathlib.Path(os.environ["CLOUD_ML_HP_METRIC_FILE"]).write_text('{"global_step": 1, "timestamp": 0.5, "loss": 0.25}')
"""
    spec = custom_job("python", "-c", report)["jobSpec"]
    with_board = custom_job("true", tensorboard=BOARD, serviceAccount="a@b.iam.gserviceaccount.com")
    grid = {"algorithm": "GRID_SEARCH", "parameters": [{"parameterId": "rate", "discreteValueSpec": {"values": [0.1]}}]}
    with service(tmp_path, python=str(python)) as vertex:
        vertex.call("POST", f"/v1/{PARENT}/tensorboards?tensorboardId=1", {"displayName": "board"})
        _, refused = vertex.call("POST", f"/v1/{PARENT}/hyperparameterTuningJobs", search(spec))
        assert refused["error"]["message"] == asks("studySpec", "optuna", "search")
        _, refused = vertex.call("POST", f"/v1/{PARENT}/customJobs", with_board)
        assert asks("jobSpec.tensorboard", "tensorboard", "tensorboard") in refused["error"]["message"]
        vertex.wait(vertex.create(search(spec, **grid), "hyperparameterTuningJobs"), "SUCCEEDED")

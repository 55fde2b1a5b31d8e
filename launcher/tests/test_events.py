"""A loop of anyone that prints events gets the bar and the blame, whatever its messages say.

The loop is that of launcher/docs/events.md, and each of its messages the letter x.
"""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from launcher.tests.running import DEADLINE, SETTINGS, SOURCE, job
from launcher.tests.test_cloud import terminal
from launcher.tests.vertex import Service, custom_job, script, service
from vertex_launch.local.running import events
from vertex_launch.local.running.events import Steps

PAGE = (Path(__file__).parents[1] / "docs/events.md").read_text(encoding="utf-8")
LOOP = PAGE.partition("```python\n")[2].partition("```")[0].replace('{"message": message', '{"message": "x"')
HANGS = "import time; time.sleep(3000)"


@pytest.fixture(scope="module")
def vertex(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with service(tmp_path_factory.mktemp("vertex")) as running:
        yield running


def test_the_bar_of_a_loop_moves_by_its_events(vertex: Service) -> None:
    base = {"outputUriPrefix": "gs://b/bar"}
    (vertex.folder / "loop.yaml").write_text(
        json.dumps(custom_job(*script(LOOP), workers=1, baseOutputDirectory=base)["jobSpec"])
    )
    with terminal(vertex, "submit", "loop.yaml", "--yes") as read:
        text = read()
    assert "[workerpool0-0] x" in text
    assert re.search("\u2501+ step 30/30 .* loss 0.03333 about ", text)


def failed(folder: Path, *programs: str) -> list[str]:
    """The last lines of a job whose replicas run these programs, from the verdict on."""
    (folder / "vertex.toml").write_text(SETTINGS)
    pools = [job(command=["python", "-c", program])["workerPoolSpecs"][0] for program in programs]
    document = {"workerPoolSpecs": pools, "baseOutputDirectory": {"outputUriPrefix": "gs://b/run"}}
    (folder / "job.json").write_text(json.dumps(document))
    command = [sys.executable, "-m", "vertex_launch", "run", "job.json"]
    environ = {"PYTHONPATH": str(SOURCE), "PATH": "/usr/bin:/bin", "HOME": str(folder)}
    done = subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True, timeout=DEADLINE)
    assert done.returncode == 1, done.stdout + done.stderr
    return done.stdout.partition("Job failed: ")[2].splitlines()


def test_the_replica_that_a_loop_blames_is_named_first(tmp_path: Path) -> None:
    first, after, *_ = failed(tmp_path, LOOP.replace("+ 60", "+ 3"), HANGS)
    assert re.fullmatch(r"workerpool1-0 is still running but hasn't printed a line for \d+ s", first)
    assert after == "After that, workerpool0-0 exited with code 75"


@pytest.mark.parametrize(
    ("fields", "steps"),
    [
        ({"step": 5, "steps": 9}, Steps(5, 9, "")),
        (
            {"step": 5.0, "steps": 9.0, "metric": "loss", "loss": 0.25},
            Steps(5, 9, "loss 0.25"),
        ),  # as the cloud has them
        ({"step": 5, "steps": 9, "metric": "train/loss", "train/loss": "nan"}, Steps(5, 9, "train loss nan")),
        ({"step": 5, "steps": 9, "metric": "loss"}, Steps(5, 9, "")),
        ({"step": 5, "steps": 9, "metric": ["loss"], "loss": 1}, Steps(5, 9, "")),
        ({"step": 5, "steps": 9, "metric": "a\x1b[2J", "a\x1b[2J": 1}, Steps(5, 9, "a\ufffd[2J 1")),
        ({"step": 5, "steps": 9, "metric": "a" * 99, "a" * 99: 1}, Steps(5, 9, "a" * events.LONGEST)),
        ({"step": 5}, None),
        ({"step": True, "steps": 9}, None),
        ({"step": "5", "steps": 9}, None),
        ({"step": 5, "steps": 10**400}, None),
        ({"step": -1, "steps": 9}, None),
        ({"message": "step 5/9  loss 0.25"}, None),
    ],
)
def test_steps_are_read_from_fields_alone(fields: dict[str, Any], steps: Steps | None) -> None:
    assert events.steps(fields) == steps

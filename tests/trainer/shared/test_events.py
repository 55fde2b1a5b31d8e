"""Every message of the trainer is the letter x, and the launcher still shows its steps and names the cause."""

import json
import signal
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.changed import change
from tests.test_divergence import HURT, WEIGHT
from tests.test_hangs import HANGS
from tests.training import DEADLINE, eventually, signal_trainer, started, train
from vertex_launch.local.running import events

MUTE = """

_line_of = _json_line


def _json_line(message, severity, **fields):
    return _line_of("x", severity, **fields)
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a project whose messages say nothing."""
    folder = tmp_path / "project"
    change(folder, "trainer/vertex/log.py", MUTE, monkeypatch)
    return folder


def printed(folder: Path, replica: str) -> list[Mapping[str, Any]]:
    """The JSON lines of a replica."""
    (log,) = folder.glob(f".vertex/jobs/*/{replica}.log")
    return [json.loads(line) for line in log.read_text().splitlines() if line.startswith("{")]


@pytest.mark.proof
def test_a_run_without_words_shows_its_steps_and_who_was_told_to_end(project: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with started(folder, 3, "--steps", "3000", "--log-every", "1", "--checkpoint-every", "2900") as (launcher, shown):
        assert eventually(lambda: shown.read_text().count("[workerpool0-0] x") > 9), shown.read_text()
        assert signal_trainer(folder, "workerpool1-0", signal.SIGTERM)
        assert launcher.wait(DEADLINE) == 1
    lines = printed(folder, "workerpool0-0")
    assert {line["message"] for line in lines} == {"x"}
    (first, *_, last) = filter(None, map(events.steps, lines))
    assert (first.done, first.total) == (1, 3000)
    assert first.metric.startswith("train loss ")
    assert last.done in [line.get("saved") for line in lines]
    said = shown.read_text()
    assert "Job failed: workerpool1-0 was killed by SIGTERM (exit code 143)" in said
    assert "2 other replicas saved the same step" in said


@pytest.mark.proof
@pytest.mark.skipif(sys.platform != "linux", reason="asks by files in memory")
def test_of_a_run_without_words_it_is_told_who_hangs_and_where(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    change(project, "trainer/data.py", HANGS.format(function="decode", calls=300), monkeypatch)
    run = train(tmp_path / "run", 3, "--steps", "60", "--collective-timeout", "30")
    assert "Job failed: workerpool1-0 is stuck in decode (trainer/data.py:" in run.output
    assert "2 other replicas waited for it" in run.output


@pytest.mark.proof
def test_of_a_run_without_words_it_is_told_whose_weights_differ(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    weight = WEIGHT["torch" if find_spec("torch") else "tensorflow"]
    change(project, "trainer/checkpoints/saver.py", HURT.format(hurt=weight), monkeypatch)
    run = train(tmp_path / "run", 3, "--steps", "12", "--checkpoint-every", "5")
    assert "Job failed: workerpool1-0 exited with code 75" in run.output
    assert "2 other replicas stopped at the same step" in run.output


@pytest.mark.proof
def test_of_a_run_without_words_it_is_told_who_is_absent(project: Path, tmp_path: Path) -> None:
    run = train(tmp_path / "run", 3, "--rollcall-timeout", "20", options=("--fault", "workerpool1-0:freeze"))
    assert "Job failed: workerpool1-0 is still running but hasn't printed a line for " in run.output
    assert printed(tmp_path / "run", "workerpool0-0")[-1]["absent"] == ["workerpool1-0"]

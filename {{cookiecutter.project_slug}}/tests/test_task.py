"""Tests that a replica's command prints each error as one sentence."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.training import DEADLINE, PROJECT
from trainer import task
from trainer.vertex.log import exit_code


def run(folder: Path, *flags: str, **env: str) -> "subprocess.CompletedProcess[str]":
    command, environ = [sys.executable, "-m", "trainer.task", *flags], {"PYTHONPATH": str(PROJECT), **env}
    return subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True, timeout=DEADLINE)


REDUCER = {
    "cluster": {"workerpool0": ["a:2222"], "workerpool1": ["b:2222"], "workerpool2": ["c:2222"]},
    "task": {"type": "workerpool2", "index": 0},
}


@pytest.mark.parametrize(
    ("flags", "env", "words"),
    [
        (["--steps", "0"], {}, "--steps is 0, but it must be at least 1"),
        (["--data", "gs://no/such"], {}, "--data gs://no/such: the folder "),
        (["--global-batch", "0", "--warmup", "-1"], {}, "--warmup is -1"),
        ([], {"CLUSTER_SPEC": json.dumps(REDUCER)}, "workerpool2-0: only pools 0 and 1 train"),
    ],
)
def test_a_mistake_is_one_sentence_and_exit_code_1(
    flags: list[str],
    env: dict[str, str],
    words: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert exit_code(task.run, flags, env) == 1
    said = capsys.readouterr().out
    assert words in said
    assert "Traceback" not in said


def test_data_that_is_not_there_is_one_sentence_too(tmp_path: Path) -> None:
    (tmp_path / "shards").mkdir()
    done = run(tmp_path, "--data", "shards")
    assert re.search(r"shards: there are no \w+-\*.array_record files; write shards with trainer", done.stdout)
    assert "Traceback" not in done.stdout + done.stderr
    assert done.returncode == 1

"""--profile writes a trace of the steps that it names, which its reader can open."""

import gzip
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.training import PROJECT, train
from trainer.reports.profile import split

EVERY = ("--log-every", "4", "--checkpoint-every", "4", "--evaluate-every", "4")
FLAGS = ("--warmup", "2", "--global-batch", "24", *EVERY)


TOLD = re.compile(r"took ([0-9.]+) ms: ([0-9.]+) ms of computation, ([0-9.]+) ms of communication")


def run(folder: Path, *flags: str) -> str:
    outputs = {name: str(folder / name) for name in ("AIP_MODEL_DIR", "AIP_CHECKPOINT_DIR", "AIP_TENSORBOARD_LOG_DIR")}
    command = [sys.executable, "-m", "trainer.task", *FLAGS, *flags]
    environ = {"PATH": os.environ["PATH"], "PYTHONPATH": str(PROJECT), "OMP_NUM_THREADS": "1", **outputs}
    done = subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_communication_beside_a_computation_is_told_apart_from_what_is_waited_for() -> None:
    computing, communicating = [(0.0, 3.0), (1.0, 2.0), (2.5, 4.0)], [(3.0, 5.0), (8.0, 9.0)]
    assert split(computing, communicating, seconds=10.0, steps=2) == (
        "an average step took 5000.0 ms: 2000.0 ms of computation, 1500.0 ms of communication (1000.0 ms didn't overlap"
        " with computation), and 2000.0 ms of other time"
    )


@pytest.mark.proof
def test_a_trace_holds_the_steps_that_were_asked_for_and_a_resumed_run_says_that_it_has_none(tmp_path: Path) -> None:
    told = run(tmp_path, "--steps", "8", "--profile", "4:7")
    assert "a trace of steps 5 to 7 is in " in told
    (parts,) = TOLD.findall(told)
    whole, computing, _ = map(float, parts)
    assert whole > computing > 0
    logs = tmp_path / "AIP_TENSORBOARD_LOG_DIR"
    if found := [*logs.glob("plugins/profile/*/*.xplane.pb")]:
        assert b"MatMul" in found[0].read_bytes()
    else:
        (path,) = logs.glob("profile/steps-4-7.json.gz")
        with gzip.open(path) as file:
            events = json.load(file)["traceEvents"]
        steps = {event["name"] for event in events if event.get("name", "").startswith("ProfilerStep#")}
        assert steps == {"ProfilerStep#4", "ProfilerStep#5", "ProfilerStep#6"}
    said = run(tmp_path, "--steps", "12", "--profile", "4:7")
    assert "--profile 4:7 doesn't write a trace, because the run resumes after the first traced step" in said


@pytest.mark.proof
def test_the_chief_of_two_tells_what_its_steps_communicate(tmp_path: Path) -> None:
    done = train(tmp_path, 2, "--steps", "12", "--profile", "4:8")
    assert done.code == 0, done.output
    (parts,) = TOLD.findall(done.output)
    assert all(float(part) > 0 for part in parts)

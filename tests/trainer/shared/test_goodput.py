"""The parts of a run are all of its time."""

import contextlib
import json
import math
import os
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.training import DEADLINE, PROJECT, processes, train
from trainer.goodput import Stopwatch


def test_a_lap_may_leave_its_last_seconds_to_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    watch = Stopwatch(last=90.0)
    watch.lap("training", but=3.0)
    watch.lap("data")
    assert watch.seconds == {"training": 7.0, "data": 3.0}
    now = 105.0
    watch.lap("training", but=math.inf)
    watch.lap("data")
    assert watch.seconds == {"training": 7.0, "data": 8.0}


@pytest.mark.proof
def test_the_parts_of_a_run_add_up_to_its_time_within_a_twentieth(tmp_path: Path) -> None:
    began, printed = time.time(), tmp_path / "printed.txt"
    flags = (
        "--steps",
        "60",
        "--warmup",
        "10",
        "--log-every",
        "20",
        "--evaluate-every",
        "30",
        "--checkpoint-every",
        "30",
    )
    with printed.open("w") as output:
        subprocess.run(
            [sys.executable, "-m", "trainer.task", *flags],
            cwd=tmp_path,
            env={"PATH": os.environ["PATH"], "PYTHONPATH": str(PROJECT), "AIP_MODEL_DIR": str(tmp_path / "model")},
            stdout=output,
            check=True,
            timeout=DEADLINE,
        )
    wall = printed.stat().st_mtime - began  # that line is its last
    told = json.loads(printed.read_text().splitlines()[-1])
    seconds = told["seconds"]
    assert {
        "start",
        "roll call",
        "first step",
        "data",
        "training",
        "checkpoints",
        "evaluation",
        "export",
    } <= seconds.keys()
    assert sum(seconds.values()) == pytest.approx(wall, rel=0.05)
    assert told["goodput"] == pytest.approx(seconds["training"] / sum(seconds.values()))
    print(told["message"])


@pytest.mark.proof
@pytest.mark.skipif(sys.platform != "linux", reason="finds processes in /proc")
def test_a_report_tells_for_how_long_the_chief_has_waited_for_a_worker(tmp_path: Path) -> None:
    held = 3.0  # seconds, many times what a step takes
    stopped, gone_on = list[float](), list[float]()

    def hold_the_worker_up_once() -> None:
        worker = processes('"workerpool1", "index": 0', str(tmp_path))
        logs = tmp_path.glob(".vertex/jobs/*/workerpool0-0.log")
        if not stopped and any('"step": 20,' in log.read_text() for log in logs):
            stopped.append(time.monotonic())
            send(signal.SIGSTOP, worker)
        elif stopped and not gone_on and time.monotonic() - stopped[0] > held:
            gone_on.append(time.monotonic())
            send(signal.SIGCONT, worker)

    run = train(tmp_path, 2, "--steps", "600", watch=hold_the_worker_up_once)
    assert run.code == 0, run.output
    assert gone_on, "the run ended before its worker was stopped"
    waited = [report["train/communication_seconds"] for report in run.reports[20:] if "train/loss" in report]
    assert max(waited) > held / 2
    assert statistics.median(waited) < held / 2
    assert any(report["message"].endswith("% communicating") for report in run.reports)


def send(number: signal.Signals, to: list[int]) -> None:
    for process in to:
        with contextlib.suppress(ProcessLookupError):  # ended meanwhile
            os.kill(process, number)

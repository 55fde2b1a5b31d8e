"""The parts of a run are all of its time."""

import json
import math
import operator
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.changed import change
from tests.training import DEADLINE, PROJECT, train
from trainer.reports.speed import Clock


@pytest.mark.parametrize(("idle", "waited"), [(3.0, 3.0), (math.inf, 4.0), (0.0, 0.0)])
def test_seconds_for_which_the_device_had_nothing_to_do_until_a_batch_came_are_of_the_data(
    idle: float, waited: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)

    def batches() -> Iterator[int]:
        nonlocal now
        for batch in range(2):
            now += 4.0
            yield batch

    clock = Clock(last=now, current="training")
    for _ in clock.timed(batches(), lambda: lambda: idle):
        now += 6.0
    with clock.phase("reports"):
        now += 1.0
    clock.begin("training")
    assert clock.seconds == {"training": 20 - 2 * waited, "data": 2 * waited, "reports": 1.0}


def test_all_phases_are_the_whole_time_and_what_trained_is_the_goodput(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    clock = Clock(now)
    for phase, seconds in (("start", 2.0), ("data", 0.5), ("training", 6.0), ("export", 1.5)):
        clock.begin(phase)
        now += seconds
    clock.begin("export")
    assert str(clock) == "goodput 60%: 6.0 of 10.0 s spent on training; start 2.0, data 0.5, export 1.5"
    assert (clock.goodput, sum(clock.seconds.values())) == (0.6, 10.0)


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
    outputs = {"AIP_MODEL_DIR": str(tmp_path / "model"), "OMP_NUM_THREADS": "1"}
    with printed.open("w") as output:
        subprocess.run(
            [sys.executable, "-m", "trainer.task", *flags],
            cwd=tmp_path,
            env={"PATH": os.environ["PATH"], "PYTHONPATH": str(PROJECT), **outputs},
            stdout=output,
            check=True,
            timeout=DEADLINE,
        )
    wall = printed.stat().st_mtime - began  # that line is its last
    *reports, told = map(json.loads, printed.read_text().splitlines())
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
    stepping = [report["train/step_seconds"] for report in reports if "train/step_seconds" in report]
    steps = (19, 10, 10, 20)  # in the speed of each report, which excludes the first step
    assert sum(map(operator.mul, stepping, steps)) == pytest.approx(seconds["training"] + seconds["data"], abs=0.1)
    print(told["message"])


HELD = 3.0  # seconds, many times what a step takes
LATE = f"""

_collate, _made = collate, []


def collate(samples: Any, config: Any) -> Batch:
    import os, time

    _made.append(None)
    if len(_made) == 40 and '"type": "workerpool1"' in os.environ["CLUSTER_SPEC"]:
        time.sleep({HELD})
    return _collate(samples, config)
"""


@pytest.mark.proof
def test_a_report_tells_for_how_long_the_chief_has_waited_for_a_worker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For one batch of the worker's, so that the chief waits in the all-reduce, wherever it is then."""
    change(tmp_path / "project", "trainer/data.py", LATE, monkeypatch)
    run = train(tmp_path / "run", 2, "--steps", "100")
    assert run.code == 0, run.output
    waited = [report["train/communication_seconds"] for report in run.reports[20:] if "train/loss" in report]
    assert max(waited) > HELD / 2
    assert statistics.median(waited) < HELD / 2
    assert any(report["message"].endswith("% communicating") for report in run.reports)

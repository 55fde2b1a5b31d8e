"""A replica for which the others wait is named, in place of the time that they communicate."""

import re
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.changed import change
from tests.training import train
from trainer.reports.sinks import describe
from trainer.reports.speed import COMPARED, Slowest

NAMES = ["workerpool0-0", "workerpool1-0", "workerpool1-1"]
# What a process does between the beginning of a step and its first message.
PLACE, FUNCTION = ("model.py", "losses") if find_spec("torch") else ("parallel/multi_worker_mirrored.py", "on_host")
SLOW = f"""
_fast = {FUNCTION}


def {FUNCTION}(*args):
    import os, time

    time.sleep(0.4 if '"type": "workerpool1"' in os.environ["CLUSTER_SPEC"] else 0.1)
    return _fast(*args)
"""


def test_the_slowest_is_named_when_some_reports_agree_and_no_longer_when_they_do_not() -> None:
    slowest = Slowest(NAMES)
    told = [slowest.values([0.1, 0.3, 0.1]) for _ in range(COMPARED)]
    assert told == [*[{}] * (COMPARED - 1), {"computes_times/workerpool1-0": pytest.approx(3.0)}]
    assert [slowest.values([0.1, 0.1, 0.1]) for _ in range(COMPARED)][-1] == {}


def test_nobody_is_slow_alone_or_among_equals() -> None:
    for names, seconds in (NAMES[:1], [0.3]), (NAMES, [0.10, 0.12, 0.14]), (NAMES, [0.0, 0.0, 0.0]):
        slowest = Slowest(names)
        assert not any(slowest.values(seconds) for _ in range(COMPARED))


def test_a_line_names_the_slow_one_and_not_the_waiting_of_the_others() -> None:
    timed = {"train/computing_seconds": 0.05, "train/communication_seconds": 0.2}
    waiting = {"train/step_seconds": 0.1, "train/data_seconds": 0.02, **timed}
    assert describe(waiting) == "20% waiting for data  80% communicating"
    told = describe(waiting | {"train/computes_times/workerpool1-0": 3.14})
    assert told == "workerpool1-0 takes 3.1 times as long to compute as the others"


@pytest.mark.proof
def test_a_slow_worker_is_named_in_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    change(tmp_path / "project", f"trainer/{PLACE}", SLOW, monkeypatch)
    run = train(tmp_path / "run", 2, "--steps", "20")
    assert run.code == 0, run.output
    assert re.search(r"workerpool1-0 takes \d\.\d times as long to compute as the others", run.output)

"""A replica that hangs while nothing dies: it is named with the place, and its log has its stack."""

import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.changed import change
from tests.training import train

pytestmark = [pytest.mark.proof, pytest.mark.skipif(sys.platform != "linux", reason="asks by files in memory")]
HANGS = """

_{function}, _calls = {function}, []


def {function}(*arguments):
    _calls.append(1)
    if len(_calls) > {calls} and '"workerpool1", "index": 0' in __import__("os").environ.get("CLUSTER_SPEC", ""):
        __import__("time").sleep(3000)
    return _{function}(*arguments)
"""
# In TensorFlow losses() is traced, once.
PLACES = [("data", "decode", 300), *([("model", "losses", 9)] if find_spec("torch") else [])]


@pytest.mark.parametrize(("module", "function", "calls"), PLACES)
def test_the_one_that_hangs_is_named_by_all_who_wait_for_it_and_writes_its_stack(
    module: str, function: str, calls: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = HANGS.format(function=function, calls=calls)
    change(tmp_path / "project", f"trainer/{module}.py", lines, monkeypatch)
    run = train(tmp_path / "run", 3, "--steps", "60", "--collective-timeout", "30")
    assert run.code == 1
    assert f"Job failed: workerpool1-0 is stuck in {function} (trainer/{module}.py:" in run.output
    assert "The other replicas wait for this replica, whose log contains its Python stack" in run.output
    (stack,) = (report["message"] for report in run.reports_of("workerpool1-0") if "; its stack:" in report["message"])
    assert f" in {function}\n" in stack
    assert "/trainer/train.py" in stack
    assert not any("is stuck in" in line and "; its stack:" in line for line in run.lines["workerpool1-1"])

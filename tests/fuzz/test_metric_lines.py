"""The metric file of a trial: measurements in the API's range, and a fault for each other line."""

import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fuzz.shapes import as_json, changed
from vertex_launch.local.jobs.metric_file import MetricFile

REPORT = st.fixed_dictionaries(
    {"timestamp": st.floats(0, 2e9), "global_step": st.integers(0, 10**6) | st.just("7"), "trial": st.just("3")},
    optional={"loss": st.floats() | st.just("0.5"), "accuracy": st.floats(0, 1)},
)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("metrics") / "metrics"


@given(st.lists(as_json(changed(REPORT)), max_size=5))
def test_any_lines(path: Path, lines: list[bytes]) -> None:
    path.write_bytes(b"\n".join(lines))
    file = MetricFile(path, ["loss", "accuracy"])
    for one in file.read(ended=True):
        assert -(2**63) <= one.step < 2**63
        assert math.isfinite(one.time)
        assert one.metrics.keys() <= {"loss", "accuracy"}
    assert len(file.fault.splitlines()) <= 1

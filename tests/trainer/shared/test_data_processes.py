"""Batches that other processes make are those of threads, and nobody outlives the run."""

import sys
from pathlib import Path

import pytest

from tests.training import eventually, processes, train

pytestmark = pytest.mark.proof
STEPS, OTHERS = ("--steps", "30"), ("--data-processes", "2")


@pytest.mark.skipif(sys.platform != "linux", reason="finds processes in /proc")
def test_a_run_with_processes_for_its_data_trains_alike_and_leaves_none_behind(tmp_path: Path) -> None:
    threads = train(tmp_path / "threads", 2, *STEPS)
    others = train(tmp_path / "processes", 2, *STEPS, *OTHERS)
    assert others.code == 0, others.output
    assert others.losses == threads.losses
    assert "leaked" not in others.output
    assert eventually(lambda: not processes("CLUSTER_SPEC", str(tmp_path)))

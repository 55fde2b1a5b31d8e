"""Tests real training in one process, and in two processes if one of them is killed and restarted."""

import signal
import sys

import pytest

from tests.randomness import draws
from tests.training import Run, divergence, eventually, processes, signal_trainer, train

pytestmark = pytest.mark.slow

STEPS = ("--steps", "150")
SAVED = (*STEPS, "--checkpoint-every", "15")  # many steps remain when a worker is killed after the first checkpoint


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run with one process."""
    return train(tmp_path_factory.mktemp("alone"), 1, *STEPS)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run with two processes and restarts. On Linux, the worker is killed after the first checkpoint."""
    folder, killed = tmp_path_factory.mktemp("pair"), False

    def kill_the_worker_after_the_first_checkpoint() -> None:
        nonlocal killed
        if not killed and (folder / ".vertex/gcs/b/run/checkpoints/step-000000015/committed.json").exists():
            killed = signal_trainer(folder, "workerpool1-0", signal.SIGKILL)

    return train(folder, 2, *SAVED, watch=kill_the_worker_after_the_first_checkpoint, options=["--restarts"])


@pytest.mark.skipif(draws(), reason="the model draws random numbers, which differ between processes")
def test_two_processes_lose_as_much_as_one_at_each_step(alone: Run, pair: Run) -> None:
    assert [step for step, _ in alone.losses_by_step] == list(range(1, 151)), alone.output
    expected = dict(alone.losses_by_step)
    assert {step for step, _ in pair.losses_by_step} == expected.keys(), pair.output
    assert divergence(expected, pair.losses_by_step) == ""


@pytest.mark.skipif(sys.platform != "linux", reason="finds processes in /proc")
def test_a_killed_worker_starts_again_and_all_resume(pair: Run) -> None:
    assert pair.code == 0, pair.output
    assert "workerpool1-0 was killed by SIGKILL (exit code 137). Restarting this replica (restart 1" in pair.output
    told = "\n".join(pair.lines["workerpool0-0"])
    assert "workerpool0-0 lost a peer: " in told
    assert "Traceback" not in told
    assert any("resumed at step" in report["message"] for report in pair.reports)
    assert eventually(lambda: not processes("CLUSTER_SPEC", str(pair.folder)))


def test_the_model_and_the_curves_are_where_vertex_wants_them(alone: Run, pair: Run) -> None:
    for run in (alone, pair):
        assert any((run.output_folder / "model").iterdir())
        assert any((run.output_folder / "logs").iterdir())

"""Training, for real: one process, and two of which one is killed."""

import signal
import sys

import pytest

from tests.training import Run, eventually, processes, signal_trainer, train

pytestmark = pytest.mark.slow

STEPS = ("--steps", "150")
SAVED = (*STEPS, "--checkpoint-every", "15")  # a worker that is killed after the first has many steps left


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """One process."""
    return train(tmp_path_factory.mktemp("alone"), 1, *STEPS)


@pytest.fixture(scope="module")
def broken(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Two processes; on Linux the worker is killed after the first checkpoint."""
    folder, killed = tmp_path_factory.mktemp("broken"), False

    def kill_the_worker_after_the_first_checkpoint() -> None:
        nonlocal killed
        if not killed and (folder / ".vertex/gcs/b/run/checkpoints/step-000000015/committed.json").exists():
            killed = signal_trainer(folder, "workerpool1-0", signal.SIGKILL)

    return train(folder, 2, *SAVED, watch=kill_the_worker_after_the_first_checkpoint)


@pytest.fixture(scope="module")
def resumed(broken: Run) -> Run:
    """The same command once more."""
    return train(broken.folder, 2, *SAVED)


def test_two_processes_lose_as_much_as_one(alone: Run, broken: Run) -> None:
    assert len(alone.losses) == 150, alone.output
    assert len(broken.losses) >= 15, broken.output
    assert broken.losses == pytest.approx(alone.losses[: len(broken.losses)], abs=1e-4)


@pytest.mark.skipif(sys.platform != "linux", reason="finds processes in /proc")
def test_a_killed_worker_ends_the_job_and_the_next_run_resumes(alone: Run, broken: Run, resumed: Run) -> None:
    assert broken.code == 1
    assert "Job failed: workerpool1-0 was ended by SIGKILL" in broken.output
    told = "\n".join(broken.lines["workerpool0-0"])
    assert "workerpool0-0 lost a peer: " in told
    assert "Traceback" not in told

    assert resumed.code == 0, resumed.output
    assert any("resumed at step" in report["message"] for report in resumed.reports)
    assert len(resumed.losses) in range(1, 136)
    assert resumed.losses == pytest.approx(alone.losses[-len(resumed.losses) :], abs=1e-4)
    assert eventually(lambda: not processes("CLUSTER_SPEC", str(broken.folder)))


def test_the_model_and_the_curves_are_where_vertex_wants_them(alone: Run, resumed: Run) -> None:
    for run in (alone, resumed):
        assert any((run.output_folder / "model").iterdir())
        assert any((run.output_folder / "logs").iterdir())

"""More of training, for real: more processes, more devices and more faults."""

import contextlib
import shutil
import signal
import sys
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from tests.changed import change
from tests.checkpoints import damage
from tests.told import told_to_end_and_resumed
from tests.training import Run, eventually, processes, signal_trainer, train

pytestmark = pytest.mark.proof
linux = pytest.mark.skipif(sys.platform != "linux", reason="finds processes in /proc")
STEPS = ("--steps", "150")


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """One process, 150 steps."""
    return train(tmp_path_factory.mktemp("alone"), 1, *STEPS)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Two processes, 150 steps, and a checkpoint before the last."""
    return train(tmp_path_factory.mktemp("pair"), 2, *STEPS, "--checkpoint-every", "145")


def weights(run: Run) -> list[np.ndarray]:
    model = tf.saved_model.load(str(run.output_folder / "model"))
    return [variable.numpy() for variable in model.variables]


def test_the_losses_do_not_depend_on_the_number_of_processes(alone: Run, pair: Run) -> None:
    same_losses(alone, pair)


def test_the_losses_of_three_processes_are_those_of_one(alone: Run, tmp_path: Path) -> None:
    same_losses(alone, train(tmp_path, 3, *STEPS))


def same_losses(alone: Run, together: Run) -> None:
    assert together.code == 0, together.output
    assert len(together.losses) == 150
    assert together.losses == pytest.approx(alone.losses, abs=1e-4)


def test_the_losses_do_not_depend_on_the_devices_that_the_layers_are_on(alone: Run, tmp_path: Path) -> None:
    """Two machines, each with the layers of one model on two devices; no step leaves a thread behind."""
    threads = set[int]()

    def count_threads() -> None:
        for number in processes("CLUSTER_SPEC", str(tmp_path)):
            with contextlib.suppress(OSError):  # it has ended
                threads.add(len([*Path(f"/proc/{number}/task").iterdir()]))

    flags = ("--strategy", "model_parallel", "--degree", "2", "--micro-batches", "2")
    spread = train(tmp_path, 2, *STEPS, *flags, watch=count_threads)
    assert max(threads, default=0) < 1000
    assert spread.code == 0, spread.output
    assert "training on 4 x CPU, model_parallel: replicate 2 x layers 2" in spread.output
    assert len(spread.losses) == 150
    assert spread.losses == pytest.approx(alone.losses, abs=1e-4)


def test_more_devices_than_blocks_are_refused_before_anybody_is_waited_for(tmp_path: Path) -> None:
    run = train(tmp_path, 2, *STEPS, "--strategy", "model_parallel", "--degree", "5")
    assert run.code == 1
    assert "--degree is 5, but tiny has only 4 blocks" in run.output
    assert not any("rollcall" in line or "Traceback" in line for line in run.output.splitlines())


def test_the_exported_model_is_where_vertex_wants_it(alone: Run) -> None:
    assert (alone.output_folder / "model/saved_model.pb").exists()
    assert any((alone.output_folder / "logs").iterdir())


@linux
def test_a_killed_worker_ends_the_job_and_the_next_run_resumes(pair: Run, tmp_path: Path) -> None:
    flags = (*STEPS, "--checkpoint-every", "15")
    checkpoints = tmp_path / ".vertex/gcs/b/run/checkpoints"
    killed: list[bool] = []

    def kill_the_worker_after_the_first_checkpoint() -> None:
        if not killed and (checkpoints / "step-000000015/committed.json").exists():
            killed.append(signal_trainer(tmp_path, "workerpool1-0", signal.SIGKILL))

    broken = train(tmp_path, 2, *flags, watch=kill_the_worker_after_the_first_checkpoint)
    assert broken.code == 1
    assert "Job failed: workerpool1-0 was killed by SIGKILL" in broken.output
    assert "Traceback" not in broken.output
    assert eventually(lambda: not processes("CLUSTER_SPEC", str(tmp_path)))

    resumed = train(tmp_path, 2, *flags)
    assert any("resumed at step" in report["message"] for report in resumed.reports)
    (told,) = (report for report in resumed.reports if "goodput" in report)
    lost = broken.losses_by_step[-1][0] - resumed.losses_by_step[0][0] + 1
    assert (told["seconds"].get("repeated", 0.0) > 0) == (lost > 0)
    assert ("must be repeated" in resumed.output) == (lost > 0)
    for ours, theirs in zip(weights(resumed), weights(pair), strict=True):
        assert ours == pytest.approx(theirs, abs=1e-6)


@linux
def test_a_replica_that_is_told_to_end_costs_no_step(pair: Run, tmp_path: Path) -> None:
    last, resumed = told_to_end_and_resumed(tmp_path, *STEPS)
    assert resumed.losses == pytest.approx(pair.losses[last:], abs=1e-6)
    for ours, theirs in zip(weights(resumed), weights(pair), strict=True):
        assert ours == pytest.approx(theirs, abs=1e-6)


def test_a_damaged_checkpoint_is_named_and_the_next_run_resumes_from_the_one_before(pair: Run, tmp_path: Path) -> None:
    checkpoints = shutil.copytree(pair.output_folder / "checkpoints", tmp_path / ".vertex/gcs/b/run/checkpoints")
    (file,) = (checkpoints / "step-000000150").glob("*.data-*")
    damage(file)
    resumed = train(tmp_path, 2, *STEPS)
    assert f"step-000000150: {file.name} is damaged: its contents differ from the saved contents" in resumed.output
    assert "resumed at step 145" in resumed.output
    for ours, theirs in zip(weights(resumed), weights(pair), strict=True):
        assert ours == pytest.approx(theirs, abs=1e-6)


def test_other_flags_than_those_of_the_checkpoint_are_refused_in_one_sentence(tmp_path: Path, alone: Run) -> None:
    shutil.copytree(alone.output_folder / "checkpoints", tmp_path / ".vertex/gcs/b/run/checkpoints")
    run = train(tmp_path, 1, *STEPS, "--size", "small")
    assert run.code == 1
    assert "doesn't match this model" in run.output
    assert "Traceback" not in run.output


def test_the_others_wait_for_a_chief_that_writes_for_longer_than_a_step_may_take(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    change(tmp_path / "project", "trainer/checkpoints/commit_marker.py", SLOW, monkeypatch)
    flags = ("--steps", "10", "--checkpoint-every", "5", "--collective-timeout", "40")
    run = train(tmp_path / "run", 2, *flags)
    assert run.code == 0, run.output
    assert [
        report["message"].rpartition("/")[2] for report in run.reports if report["message"].startswith("saved ")
    ] == [
        "step-000000005",
        "step-000000010",
    ]


SLOW = """

_create_empty = create_empty


def create_empty(folder: Path) -> None:
    if folder.name == "step-000000005":
        __import__("time").sleep(55)  # as a bucket may take for a large model
    _create_empty(folder)
"""

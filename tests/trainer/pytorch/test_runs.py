"""More of training, for real: more processes, more faults, and equal to the last bit where PyTorch can be."""

import os
import shutil
import signal
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from tests.changed import change
from tests.checkpoints import damage, whole
from tests.told import told_to_end_and_resumed
from tests.training import DEADLINE, Run, eventually, processes, signal_trainer, started, train
from trainer import export
from trainer.checkpoints.divergence import Answers
from trainer.config import Config, Job
from trainer.samples import shards
from trainer.vertex.errors import TrainerError
from trainer.vertex.storage import Storage

pytestmark = pytest.mark.proof
linux = pytest.mark.skipif(sys.platform != "linux", reason="finds processes in /proc")
STEPS = ("--steps", "150", "--global-batch", "25")  # which neither 2 nor 3 processes share evenly
HELD = """

import time

from trainer.vertex.log import say

_finish = finish


def finish(*args):
    say("the export is held")
    while not (args[0].storage.checkpoints / "go").exists():
        time.sleep(0.1)
    _finish(*args)
"""
OTHER_BETAS = """

_new_optimizer = new_optimizer


def new_optimizer(*arguments):
    optimizer = _new_optimizer(*arguments)
    for group in optimizer.param_groups:
        group["betas"] = 0.1, 0.1
    return optimizer
"""
SAVED = (*STEPS, "--checkpoint-every", "15")


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """One process, 150 steps."""
    return train(tmp_path_factory.mktemp("alone"), 1, *STEPS)


def weights(run: Run) -> dict[str, torch.Tensor]:
    loaded: dict[str, torch.Tensor] = torch.load(run.output_folder / "model/weights.pt")
    return loaded


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Two processes, 150 steps, and a checkpoint before the last."""
    return train(tmp_path_factory.mktemp("pair"), 2, *STEPS, "--checkpoint-every", "145")


def test_the_losses_do_not_depend_on_the_number_of_processes(alone: Run, pair: Run) -> None:
    same_losses(alone, pair)


def test_the_losses_of_three_processes_are_those_of_one(alone: Run, tmp_path: Path) -> None:
    same_losses(alone, train(tmp_path, 3, *STEPS))


def same_losses(alone: Run, together: Run) -> None:
    assert together.code == 0, together.output
    assert len(together.losses) == 150
    assert together.losses == pytest.approx(alone.losses, abs=1e-5)


def test_shards_export_the_same_model_bit_for_bit(pair: Run, tmp_path: Path) -> None:
    sharded = train(tmp_path, 2, *STEPS, "--strategy", "fsdp")
    assert "training on 2 x CPU, fsdp: shard 2" in sharded.output
    expected, found = weights(pair), weights(sharded)
    assert found.keys() == expected.keys()
    assert all(torch.equal(value, expected[name]) for name, value in found.items())


def test_a_strategy_that_does_not_fit_is_refused_before_anyone_waits(tmp_path: Path) -> None:
    run = train(tmp_path, 3, *STEPS, "--strategy", "fsdp", "--degree", "4", "--micro-batches", "3")
    assert run.code == 1
    assert "--micro-batches is 3, but each process has fewer samples (--global-batch 25 / 12 = 2)" in run.output
    assert "Traceback" not in run.output


def test_the_exported_model_is_where_vertex_wants_it(alone: Run) -> None:
    assert sorted(path.name for path in (alone.output_folder / "model").iterdir()) == ["model.pt2", "weights.pt"]
    assert any((alone.output_folder / "logs").iterdir())


def train_and_lose_a_process(folder: Path, *options: str) -> Run:
    """Two replicas, 150 steps; the worker's training process is killed after the first checkpoint."""
    checkpoints = folder / ".vertex/gcs/b/run/checkpoints"
    victims: list[int] = []

    def kill_after_the_first_checkpoint() -> None:
        if not victims and (checkpoints / "step-000000015/committed.json").exists():
            victims.extend(processes('"workerpool1", "index": 0', str(folder)))
            os.kill(max(victims), signal.SIGKILL)  # the others started this process

    return train(folder, 2, *SAVED, watch=kill_after_the_first_checkpoint, options=options)


@linux
def test_a_killed_worker_ends_the_job_and_the_next_run_resumes_bit_for_bit(pair: Run, tmp_path: Path) -> None:
    broken = train_and_lose_a_process(tmp_path)
    assert broken.code == 1
    assert "Job failed: workerpool1-0 was killed by SIGKILL" in broken.output
    assert "Traceback" not in broken.output
    assert eventually(lambda: not processes("CLUSTER_SPEC", str(tmp_path)))

    resumed = train(tmp_path, 2, *SAVED)
    assert any("resumed at step" in report["message"] for report in resumed.reports)
    (told,) = (report for report in resumed.reports if "goodput" in report)
    lost = broken.losses_by_step[-1][0] - resumed.losses_by_step[0][0] + 1
    assert (told["seconds"].get("repeated", 0.0) > 0) == (lost > 0)
    assert ("must be repeated" in resumed.output) == (lost > 0)
    expected = weights(pair)
    assert all(torch.equal(value, expected[name]) for name, value in weights(resumed).items())
    assert resumed.losses == pair.losses[-len(resumed.losses) :]


@linux
def test_a_replica_whose_peer_was_killed_says_so_and_that_nothing_is_wrong_with_itself(
    pair: Run, tmp_path: Path
) -> None:
    again = train_and_lose_a_process(tmp_path, "--restarts")
    assert again.code == 0, again.output
    told = "\n".join(again.lines["workerpool0-0"])
    assert "workerpool0-0 lost a peer: " in told
    assert "failed (exit code" not in told
    assert "Traceback" not in told
    expected = weights(pair)
    assert all(torch.equal(value, expected[name]) for name, value in weights(again).items())


@linux
def test_a_replica_that_is_told_to_end_costs_no_step_and_the_next_run_resumes_bit_for_bit(
    pair: Run, tmp_path: Path
) -> None:
    last, resumed = told_to_end_and_resumed(tmp_path, *STEPS)
    assert resumed.losses == pair.losses[last:]
    expected = weights(pair)
    assert all(torch.equal(value, expected[name]) for name, value in weights(resumed).items())


@linux
def test_a_replica_that_is_told_to_end_after_the_last_step_lets_the_job_succeed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    change(tmp_path / "project", "trainer/export.py", HELD, monkeypatch)
    with started(tmp_path, 2, "--steps", "8", "--warmup", "1") as (launcher, shown):
        assert eventually(lambda: launcher.poll() is not None or "the export is held" in shown.read_text())
        assert signal_trainer(tmp_path, "workerpool1-0", signal.SIGTERM)
        assert signal_trainer(tmp_path, "workerpool0-0", signal.SIGTERM)
        (tmp_path / ".vertex/gcs/b/run/checkpoints/go").touch()
        assert launcher.wait(DEADLINE) == 0, shown.read_text()
    assert (tmp_path / ".vertex/gcs/b/run/model/model.pt2").exists()


def test_a_resumed_run_has_the_optimizer_of_today(pair: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoints = shutil.copytree(pair.output_folder / "checkpoints", tmp_path / ".vertex/gcs/b/run/checkpoints")
    shutil.rmtree(checkpoints / "step-000000150")
    change(tmp_path / "project", "trainer/train.py", OTHER_BETAS, monkeypatch)
    resumed = train(tmp_path, 2, *STEPS)
    assert "resumed at step 145" in resumed.output
    assert resumed.losses[0] == pair.losses[145]
    assert resumed.losses[-1] != pytest.approx(pair.losses[-1], rel=1e-4)


def test_a_damaged_checkpoint_is_named_and_the_next_run_resumes_bit_for_bit_from_the_one_before(
    pair: Run, tmp_path: Path
) -> None:
    checkpoints = shutil.copytree(pair.output_folder / "checkpoints", tmp_path / ".vertex/gcs/b/run/checkpoints")
    file = min((checkpoints / "step-000000150").glob("*.distcp"))  # the second process finds out, and tells the chief
    damage(file)
    resumed = train(tmp_path, 2, *STEPS)
    assert f"step-000000150: {file.name} is damaged: its contents differ from the saved contents" in resumed.output
    assert "resumed at step 145" in resumed.output
    expected = weights(pair)
    assert all(torch.equal(value, expected[name]) for name, value in weights(resumed).items())


@linux
def test_a_stopped_launcher_leaves_no_process(tmp_path: Path) -> None:
    with started(tmp_path, 2, "--steps", "5000") as (launcher, shown):
        assert eventually(lambda: "loss" in shown.read_text())
        launcher.kill()
        assert eventually(lambda: not processes("CLUSTER_SPEC", str(tmp_path)))


def test_other_flags_than_those_of_the_checkpoint_are_refused_in_one_sentence(tmp_path: Path, alone: Run) -> None:
    shutil.copytree(alone.output_folder / "checkpoints", tmp_path / ".vertex/gcs/b/run/checkpoints")
    run = train(tmp_path, 1, *STEPS, "--size", "small")
    assert run.code == 1
    assert "doesn't match this model" in run.output
    assert "Traceback" not in run.output


@pytest.mark.skipif(not find_spec("horovod"), reason="is installed by hand: bash requirements/horovod.sh")
def test_horovod_trains_and_exports_as_ddp_does(pair: Run, tmp_path: Path) -> None:
    together = train(tmp_path, 2, *STEPS, "--strategy", "horovod", "--micro-batches", "2")
    assert together.code == 0, together.output
    assert together.losses == pytest.approx(pair.losses, abs=1e-5)


@pytest.mark.skipif(bool(find_spec("horovod")), reason="is installed")
def test_horovod_is_refused_in_one_sentence_where_it_is_not_installed(tmp_path: Path) -> None:
    run = train(tmp_path, 1, "--strategy", "horovod")
    assert run.code == 1
    assert "--strategy horovod requires Horovod, which isn't installed; run requirements/horovod.sh" in run.output
    assert "Traceback" not in run.output


def test_a_damaged_checkpoint_is_not_exported(tmp_path: Path) -> None:
    shards.write_example(Config.data, tmp_path / "shards")
    folder = whole(tmp_path, 50)
    damage(folder / "weights")
    job = Job(Config(steps=50), Storage(model=tmp_path / "model", checkpoints=tmp_path), tmp_path / "shards")
    with pytest.raises(
        TrainerError, match=r"step-000000050 wasn't exported: weights is damaged: .*; run the job again"
    ):
        export.finish(job, Answers([]))
    assert not (tmp_path / "model").exists()

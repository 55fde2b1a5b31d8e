"""What a run leaves to the next one, and how little it can do with."""

import shutil
from pathlib import Path

import pytest

from tests.training import train
from trainer import data, shards
from trainer.config import Config

pytestmark = pytest.mark.proof


def test_a_loss_that_is_no_number_becomes_no_checkpoint(tmp_path: Path) -> None:
    diverges = ("--learning-rate", "1e30", "--warmup", "1", "--log-every", "100")
    run = train(tmp_path, 1, *diverges, "--steps", "20", "--checkpoint-every", "3")
    assert run.code == 1
    assert "the loss is no number any more, since a step after 0; lower --learning-rate" in run.output
    assert not [*tmp_path.glob(".vertex/gcs/b/run/checkpoints/*")]


def test_a_resumed_run_trains_by_its_own_flags(tmp_path: Path) -> None:
    begun = train(tmp_path / "begun", 1, "--steps", "10")
    assert begun.code == 0, begun.output
    losses = []
    for decay in ("0.01", "20"):
        folder = tmp_path / decay
        shutil.copytree(begun.output_folder / "checkpoints", folder / ".vertex/gcs/b/run/checkpoints")
        resumed = train(folder, 1, "--steps", "20", "--weight-decay", decay)
        assert "resumed at step 10" in resumed.output
        losses.append(resumed.losses)
    before, after = losses
    assert before[0] == after[0]
    assert before[-1] != pytest.approx(after[-1], rel=1e-3)


def test_a_run_that_has_taken_more_steps_than_it_is_to_take_is_refused(tmp_path: Path) -> None:
    begun = train(tmp_path, 1, "--steps", "10")
    assert begun.code == 0, begun.output
    model = {path: path.stat().st_mtime_ns for path in (begun.output_folder / "model").iterdir()}
    refused = train(tmp_path, 1, "--steps", "9")
    assert refused.code == 1
    assert (
        "--steps is 9, and the run has taken 10 already; raise it, or begin anew: here with --fresh" in refused.output
    )
    assert model == {path: path.stat().st_mtime_ns for path in (begun.output_folder / "model").iterdir()}


def test_one_held_out_sample_is_enough_to_score_and_export(tmp_path: Path) -> None:
    samples, folder = data.EXAMPLES[Config.data](), tmp_path / ".vertex/gcs/b/few"
    shards.write(samples["train"][:200], folder, "train", shard_count=1)
    shards.write(samples["heldout"][:1], folder, "heldout", shard_count=1)
    run = train(tmp_path, 2, "--steps", "10", "--data", "gs://b/few")
    assert run.code == 0, run.output
    assert any((run.output_folder / "model").iterdir())

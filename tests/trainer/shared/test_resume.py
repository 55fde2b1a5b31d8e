"""What a run leaves to the next one, and how little it can do with."""

import re
import shutil
from pathlib import Path

import pytest

from tests.changed import change
from tests.training import Run, train
from trainer import data
from trainer.config import Config
from trainer.samples import shards

pytestmark = pytest.mark.proof
BEGUN = ".vertex/gcs/b/run/checkpoints/step-000000010"
SMALLER = """

SIZES["tiny"] = Size(64, 2, 4)
"""
LEAVES = """

_losses = losses


def losses(output, batch):
    import sys

    vars(sys).setdefault("leaving", []).append(1)
    if len(vars(sys)["leaving"]) == 2:
        sys.exit(0)
    return _losses(output, batch)
"""


def test_a_loss_that_is_no_number_becomes_no_checkpoint(tmp_path: Path) -> None:
    diverges = ("--learning-rate", "1e30", "--warmup", "1", "--log-every", "100")
    run = train(tmp_path, 1, *diverges, "--steps", "20", "--checkpoint-every", "3")
    assert run.code == 1
    assert re.search(r"the (gradient|loss) .*NaN or infinite", run.output)
    assert not [*tmp_path.glob(".vertex/gcs/b/run/checkpoints/*")]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """One process, 20 steps, and a checkpoint in the middle."""
    run = train(tmp_path_factory.mktemp("whole"), 1, "--steps", "20", "--checkpoint-every", "10")
    assert run.code == 0, run.output
    return run


def test_a_resumed_run_trains_by_its_own_flags(whole: Run, tmp_path: Path) -> None:
    shutil.copytree(whole.folder / BEGUN, tmp_path / BEGUN)
    resumed = train(tmp_path, 1, "--steps", "20", "--weight-decay", "200")
    assert "resumed at step 10" in resumed.output
    assert resumed.losses[0] == pytest.approx(whole.losses[10], rel=1e-6)
    assert resumed.losses[-1] != pytest.approx(whole.losses[-1], rel=1e-3)


def test_a_smaller_model_does_not_go_on_from_the_checkpoint_of_a_larger_one(
    whole: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(whole.folder / BEGUN, tmp_path / BEGUN)
    change(tmp_path / "project", "trainer/model.py", SMALLER, monkeypatch)
    refused = train(tmp_path, 1, "--steps", "20")
    assert refused.code == 1, refused.output
    assert "step-000000010 doesn't match this model (" in refused.output
    assert "use the checkpoint's model with --size tiny --patch 2, or start over" in refused.output
    assert "Traceback" not in refused.output


def test_a_model_that_exits_with_0_is_no_success(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    change(tmp_path / "project", "trainer/model.py", LEAVES, monkeypatch)
    run = train(tmp_path, 1, "--steps", "20")
    assert run.code == 1, run.output
    assert "workerpool0-0: a training process exited with code 0 before training was complete" in run.output


def test_a_run_that_has_taken_more_steps_than_it_is_to_take_is_refused(whole: Run) -> None:
    model = {path: path.stat().st_mtime_ns for path in (whole.output_folder / "model").iterdir()}
    refused = train(whole.folder, 1, "--steps", "19")
    assert refused.code == 1
    assert (
        "--steps is 19, but the run has already taken 20 steps; increase --steps, or start over (locally with --fresh"
        in refused.output
    )
    assert model == {path: path.stat().st_mtime_ns for path in (whole.output_folder / "model").iterdir()}


def test_one_held_out_sample_is_enough_to_score_and_export(tmp_path: Path) -> None:
    samples, folder = data.EXAMPLES[Config.data](), tmp_path / ".vertex/gcs/b/few"
    shards.write(samples["train"][:200], folder, "train", shard_count=1)
    shards.write(samples["heldout"][:1], folder, "heldout", shard_count=1)
    run = train(tmp_path, 2, "--steps", "10", "--data", "gs://b/few")
    assert run.code == 0, run.output
    assert any((run.output_folder / "model").iterdir())

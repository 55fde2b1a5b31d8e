"""A gradient that is no number, whose it is, and what becomes of the state; and a state that holds such values."""

import re
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.changed import change
from tests.training import Run, train
from trainer import data
from trainer.config import Config
from trainer.samples import batches

STEPS = ("--steps", "12", "--checkpoint-every", "5", "--log-every", "5")
INDEX = 9 * 24 + 1 + 3 * 2  # of the fourth sample of the second share of step 10, in the order of the run
MARK = """

_train_batches = train_batches


def train_batches(dataset: Dataset, config: Config, *, start: int, rank: int, world_size: int) -> Iterator[Batch]:
    parts = _train_batches(dataset, config, start=start, rank=rank, world_size=world_size)
    for step, batch in enumerate(parts, start):
        if step == 9 and rank == 1 % world_size:
            batch.inputs[3] += 100.0
        yield batch
"""
ROOT = """

_losses = losses


def losses(output, batch):
    losses, marked = _losses(output, batch), {any}
    return losses + {where}  # the root of 0 is 0, and its slope is no number
"""
POISON = {
    "torch": ROOT.format(
        any="batch.inputs.flatten(1).amax(1) > 50",
        where="torch.zeros_like(losses).masked_scatter(marked, (losses[marked] * 0).sqrt())",
    ),
    "tensorflow": ROOT.format(
        any="tf.where(tf.reduce_max(tf.reshape(batch.inputs, [tf.shape(batch.inputs)[0], -1]), 1) > 50)",
        where="tf.scatter_nd(marked, tf.sqrt(tf.gather_nd(losses, marked) * 0), tf.shape(losses, tf.int64))",
    ),
}
SAVER = "trainer/checkpoints/saver.py"
HURT = """

_save = Checkpoints.save


def save(self, state):
    if state.step == 10:
        {hurt}
    _save(self, state)


Checkpoints.save = save
"""
OLDER = """

def why_nonfinite(*_):
    return ""
"""
# A moment that is infinite leaves its parameter as it is: no loss tells.
MOMENT = {
    "torch": "next(iter(state.optimizer.state.values()))['exp_avg_sq'][0] = torch.inf",
    "tensorflow": "state.optimizer.variables[-1].assign(state.optimizer.variables[-1] + float('inf'))",
}


@pytest.fixture
def poisoned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a run whose tenth step has a sample with such a gradient."""
    change(tmp_path / "project", "trainer/samples/batches.py", MARK, monkeypatch)
    framework = "torch" if find_spec("torch") else "tensorflow"
    change(tmp_path / "project", "trainer/model.py", POISON[framework], monkeypatch)
    return tmp_path / "run"


def broken_and_mended(folder: Path, sentence: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Train to the end with this sentence behind step 5, then again without the change, which resumes there."""
    broken = train(folder, 2, *STEPS)
    assert broken.code == 1
    assert re.search(sentence, broken.output)
    assert "Traceback" not in broken.output
    assert saved(broken) == ["step-000000005"]

    monkeypatch.undo()
    mended = train(folder, 2, *STEPS)
    assert mended.code == 0, mended.output
    assert "resumed at step 5" in mended.output


def saved(run: Run) -> list[str]:
    return sorted(path.parent.name for path in run.output_folder.glob("checkpoints/*/committed.json"))


# Eight processes, of which most of the time is the start of TensorFlow.
@pytest.mark.proof
def test_the_sample_and_its_replica_are_named_and_the_run_without_it_resumes_at_the_checkpoint_before(
    poisoned: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    number = batches.order(len(data.EXAMPLES[Config.data]()["train"]), Config())[INDEX]
    whose = f"the gradient of step 10 is NaN or infinite on workerpool1-0 (samples {number}); check these samples"
    broken_and_mended(poisoned, re.escape(whose), monkeypatch)


@pytest.mark.proof
def test_a_step_that_may_be_skipped_is_counted_and_the_run_goes_on(poisoned: Path) -> None:
    run = train(poisoned, 2, *STEPS, "--skip-nonfinite", "1")
    assert run.code == 0, run.output
    reports = [report for report in run.reports if "train/step_seconds" in report]
    counts = {report["step"]: report.get("train/skipped_steps", 0) for report in reports}
    assert counts == {5: 0, 10: 1, 12: 1}
    assert saved(run) == ["step-000000010", "step-000000012"]


@pytest.fixture
def hurt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a run whose state is hurt before its tenth step is saved."""
    framework = "torch" if find_spec("torch") else "tensorflow"
    change(tmp_path / "project", SAVER, HURT.format(hurt=MOMENT[framework]), monkeypatch)
    return tmp_path / "run"


@pytest.mark.proof
def test_a_state_that_holds_what_is_no_number_is_not_written_and_the_next_run_resumes_at_the_one_before(
    hurt: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken_and_mended(hurt, r"step-000000010 is not written: \S+ contains NaN or infinite values; ", monkeypatch)


@pytest.mark.proof
def test_a_checkpoint_of_an_older_version_that_holds_what_is_no_number_is_skipped_by_name(
    hurt: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    change(hurt.parent / "project", SAVER, OLDER, monkeypatch)
    older = train(hurt, 1, *STEPS, "--steps", "10")
    assert older.code == 0, older.output
    assert saved(older)[-1] == "step-000000010"

    monkeypatch.undo()
    mended = train(hurt, 1, *STEPS)
    assert mended.code == 0, mended.output
    assert re.search(r"skipped \S+/step-000000010: \S+ contains NaN or infinite values", mended.output)
    assert "resumed at step 5" in mended.output

"""Copies of the model that are not alike any more: who is named, and what becomes of the run."""

from collections.abc import Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.changed import change
from tests.training import train
from trainer.checkpoints.divergence import require_no_divergence
from trainer.config import Config, Job
from trainer.vertex.errors import PeerError
from trainer.vertex.storage import Storage

JOB = Job(Config(), Storage(), Path())
NAMES = ["workerpool0-0", "workerpool1-0", "workerpool1-1"]
HURT = """

_step = Checkpoints.step


def step(self, state):
    if state.step == 8 and self._world.rank == 1:
        {hurt}
    _step(self, state)


Checkpoints.step = step
"""
WEIGHT = {
    "torch": "next(state.net.parameters()).data.flatten()[3] += 1e-3",
    "tensorflow": "(w := self._world.strategy.experimental_local_results(state.net.trainable_variables[0].value)[0])"
    ".assign(w + 1e-3)",
}


def told(copies: list[int], saved: str = "", differs: Sequence[str] = ("workerpool1-0",)) -> str:
    digests = [{"embed.weight": 7, "head.weight": value} for value in copies]
    with pytest.raises(PeerError) as caught:
        require_no_divergence(JOB, 40, saved, [f"process 3 of {name}" for name in NAMES[: len(copies)]], digests)
    assert caught.value.event == {"diverged": [*differs]}
    return str(caught.value).partition("; if ")[0].replace("process 3 of ", "")


def test_the_copy_that_is_not_like_most_is_named_with_the_tensor_and_the_checkpoint_to_resume_from() -> None:
    assert told([5, 6, 5], saved="step-000000020") == (
        "after step 40, workerpool1-0 has diverged from the others in head.weight; "
        "this state isn't saved, and after a restart, training resumes from step-000000020"
    )


def test_all_are_named_where_none_is_like_most() -> None:
    assert told([5, 6], differs=NAMES[:2]) == (
        "after step 40, workerpool0-0 and workerpool1-0 have diverged from one another in head.weight; "
        "this state isn't saved, and after a restart, training begins at the first step"
    )
    assert "workerpool0-0 and workerpool1-0 and workerpool1-1 have diverged from one another" in told(
        [5, 6, 7], differs=NAMES
    )


def test_a_run_goes_on_anyway_where_it_is_told_to(capsys: pytest.CaptureFixture[str]) -> None:
    anyway = replace(JOB, config=Config(anyway=True))
    require_no_divergence(anyway, 40, "", NAMES, [{"head": 1}, {"head": 2}, {"head": 1}])
    told = "after step 40, workerpool1-0 has diverged from the others in head; continuing because of --anyway"
    assert told in capsys.readouterr().out


@pytest.mark.proof
@pytest.mark.parametrize("flags", [(), ("--compare-ranks-every", "4")])
def test_a_replica_whose_weights_part_from_the_others_is_named_and_the_next_run_resumes_at_the_checkpoint_before(
    flags: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    framework = "torch" if find_spec("torch") else "tensorflow"
    with monkeypatch.context() as patch:
        change(tmp_path / "project", "trainer/checkpoints/saver.py", HURT.format(hurt=WEIGHT[framework]), patch)
        broken = train(tmp_path / "run", 3, "--steps", "12", "--checkpoint-every", "5", *flags)
    assert "Job failed: workerpool1-0 exited with code 75" in broken.output
    assert "2 other replicas stopped at the same step" in broken.output
    step = 8 if flags else 10
    assert f"after step {step}, workerpool1-0 has diverged from the others in " in broken.output
    assert "; this state isn't saved, and after a restart, training resumes from step-000000005; " in broken.output
    assert "Traceback" not in broken.output
    assert not (broken.output_folder / "checkpoints/step-000000010/committed.json").exists()
    if not flags:
        mended = train(tmp_path / "run", 3, "--steps", "12", "--checkpoint-every", "5")
        assert mended.code == 0, mended.output
        assert "resumed at step 5" in mended.output

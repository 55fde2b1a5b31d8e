"""What losses() and metrics() must not return, in the sentence that names the function."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.changed import change
from tests.test_telemetry import reporter
from tests.training import train
from trainer.step.totals import require_one_per_sample
from trainer.vertex.errors import TrainerError

EACH = np.zeros(4)


def test_one_number_per_sample_is_what_is_wanted() -> None:
    require_one_per_sample(EACH, EACH, {"accuracy": EACH}, 4)


@pytest.mark.parametrize(
    ("losses", "metrics", "sentence"),
    [
        (
            np.zeros(()),
            {},
            "losses() in trainer/model.py has shape () instead of (4,); return one number per sample, not a mean",
        ),
        (
            np.zeros((4, 1)),
            {},
            "losses() in trainer/model.py has shape (4, 1) instead of (4,); return one number per sample",
        ),
        (
            EACH,
            {"error": np.zeros(())},
            '"error" of metrics() in trainer/model.py has shape () instead of (4,); return one',
        ),
        (
            EACH,
            {"errors": 3},
            '"errors" of metrics() in trainer/model.py has shape () instead of (4,); return one number',
        ),
        (
            EACH,
            {"loss": EACH},
            'metrics() in trainer/model.py returns "loss", which is a reserved name; rename the metric',
        ),
        (
            EACH,
            {"samples": EACH},
            'metrics() in trainer/model.py returns "samples", which is a reserved name; rename the metric',
        ),
    ],
)
def test_anything_else_is_refused(losses: Any, metrics: dict[str, Any], sentence: str) -> None:
    with pytest.raises(TrainerError) as told:
        require_one_per_sample(EACH, losses, metrics, 4)
    assert str(told.value).startswith(sentence)


MEAN = """

_losses = losses


def losses(output, batch):
    return _losses(output, batch)[0]
"""


@pytest.mark.proof
def test_a_loss_that_is_a_mean_ends_a_run_in_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    change(tmp_path / "project", "trainer/model.py", MEAN, monkeypatch)
    run = train(tmp_path, 2, "--steps", "4")
    assert run.code == 1
    assert "losses() in trainer/model.py has shape () instead of (" in run.output
    assert "Traceback" not in run.output


def test_an_output_of_several_tensors_is_refused() -> None:
    with pytest.raises(
        TrainerError, match=r"the model in trainer/model.py returns a tuple, which can't be exported; return a tensor"
    ):
        require_one_per_sample((EACH, EACH), EACH, {}, 4)


@pytest.mark.parametrize("loss", ["nan", "inf", "-inf"])
def test_a_loss_that_is_no_number_ends_the_run_with_where_to_look(
    loss: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sentence = r"^the loss became NaN or infinite after step 3; lower --learning-"
    reports = reporter(tmp_path, steps=9)
    reports.training(3, {"loss": 0.5})
    with pytest.raises(TrainerError, match=sentence):
        reports.training(6, {"loss": float(loss)})
    assert f"step 6/9  loss {loss}" in capsys.readouterr().out

"""python -m trainer.describe: a real process each time, as the planner starts it."""

import json
from pathlib import Path

import pytest

from tests.estimates import Answer, describe
from tests.marks import ONCE
from trainer import task
from trainer.describe import __main__ as program
from trainer.vertex.log import exit_code


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Answer:
    """With the default flags."""
    return describe(tmp_path_factory.mktemp("tiny"))


@ONCE
def test_activations_take_less_in_the_smaller_precision(tiny: Answer) -> None:
    half, full = (tiny.value[f"activation_bytes_per_sample{name}"] for name in ("", "_float32"))
    assert full / 2 < half < full


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (
            ("--data", "gs://b/d"),
            "--data gs://b/d: the folder nowhere/b/d doesn't exist; copy shards to this folder, or ",
        ),
        (("--micro-batches", "0"), "--micro-batches is 0, but it must be at least 1"),
    ],
)
def test_what_cannot_be_described_is_one_sentence(
    flags: tuple[str, ...], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert exit_code(program.run, flags, {"GCS_MOUNT": "nowhere"}) == 1
    assert words in json.loads(capsys.readouterr().out)["message"]


@pytest.mark.proof
def test_no_weights_are_allocated(tiny: Answer, tmp_path: Path) -> None:
    base = describe(tmp_path, "--size", "base")
    assert base.value["parameter_bytes"] > 3.4e8
    assert base.peak < 1.25 * tiny.peak  # a graph takes some, the weights would take half as much again


def test_help_tells_of_it(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        task.run(["--help"], {})
    assert "trainer.describe" in capsys.readouterr().out


def test_a_wrong_flag_is_told_in_the_name_of_this_program(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        program.run(["--stpes"], {})
    assert "python -m trainer.describe --help" in capsys.readouterr().err

import math
from dataclasses import fields, replace
from typing import Any

import pytest

from trainer.config import Config, LoopFlags, findings, learning_rate
from trainer.parallel.choice import parse
from trainer.parallel.strategy import StrategyFlags
from trainer.vertex.errors import TrainerError

# The field, an invalid value, and the message.
WRONG: list[tuple[str, Any, str]] = [
    ("steps", 0, "--steps is 0, but it must be at least 1"),
    ("steps", -1, "--steps is -1, but it must be at least 1"),
    ("global_batch", -8, "--global-batch is -8, but it must be at least 1"),
    ("micro_batches", 0, "--micro-batches is 0, but it must be at least 1"),
    ("log_every", 0, "--log-every is 0, but it must be at least 1"),
    ("evaluate_every", 0, "--evaluate-every is 0, but it must be at least 1"),
    ("checkpoint_every", 0, "--checkpoint-every is 0, but it must be at least 1"),
    ("learning_rate", 0.0, "--learning-rate is 0.0, but it must be above 0"),
    ("learning_rate", math.inf, "--learning-rate is inf, but it must be above 0"),
    ("clip", math.nan, "--clip is nan, but it must be above 0"),
    ("collective_timeout", -1.0, "--collective-timeout is -1.0, but it must be above 0"),
    ("rollcall_timeout", 0.0, "--rollcall-timeout is 0.0, but it must be above 0"),
    ("rollcall_timeout", math.inf, "--rollcall-timeout is inf, but it must be above 0"),
    ("rollcall_timeout", math.nan, "--rollcall-timeout is nan, but it must be above 0"),
    ("keep", 0, "--keep is 0, but it must be at least 1, because a run without a checkpoint can't resume"),
    ("data_processes", -1, "--data-processes is -1, but it must be 0 or more"),
    ("warmup", -1, "--warmup is -1, but it must be 0 or more"),
    ("weight_decay", math.nan, "--weight-decay is nan, but it must be 0 or more"),
    ("profile", "20", "--profile is 20, but it must be a range of steps such as 20:25"),
    ("profile", "25:20", "--profile is 25:20, but it must be a range of steps such as 20:25"),
    ("profile", "598:601", f"--profile is 598:601, but it must end by the last step, {Config().steps}"),
    ("seed", -1, "--seed is -1, but it must be between 0 and 2**32 - 1"),
    ("seed", 2**32, "--seed is 4294967296, but it must be between 0 and 2**32 - 1"),
]


def test_the_defaults_have_no_problem() -> None:
    assert list(findings(Config())) == []


def test_no_flags_are_the_defaults() -> None:
    strategy, config = parse([])
    assert config == strategy.flags()
    assert strategy.name == StrategyFlags.strategy


def test_each_field_has_a_flag_of_its_name_with_dashes() -> None:
    others = replace(
        parse([])[1],
        data="gs://b/d", steps=2000, global_batch=192, micro_batches=2,
        precision="bfloat16", learning_rate=1e-4, warmup=7, weight_decay=0.1, clip=2.0, seed=3, log_every=5,
        evaluate_every=6, checkpoint_every=8, keep=9, rollcall_timeout=5.0, collective_timeout=20.0,
        profile="3:5", require_reducers=True, data_processes=2, skip_nonfinite=4, anyway=True,
        compare_ranks_every=10, rehearse_export=False,
    )  # fmt: skip
    names = {"data", *(field.name for field in fields(LoopFlags))}
    ours = [field for field in fields(Config) if field.name in names]
    values = {f"--{field.name.replace('_', '-')}": getattr(others, field.name) for field in ours}
    words = [(flag,) if value is True else (flag, str(value)) for flag, value in values.items()]
    assert parse([word for flag in words for word in flag])[1] == others
    assert [field.name for field in ours if getattr(others, field.name) == field.default] == []


@pytest.mark.parametrize(("field", "value", "words"), WRONG)
def test_a_wrong_value_is_one_phrase_that_names_the_flag(field: str, value: Any, words: str) -> None:
    assert next(findings(replace(Config(), **{field: value}))) == words


def test_all_problems_come_at_once() -> None:
    with pytest.raises(TrainerError) as caught:
        parse(["--steps", "0", "--clip", "-1", "--seed", "-1", "--keep", "0"])
    assert [phrase.split()[0] for phrase in str(caught.value).split("; ")] == ["--steps", "--clip", "--keep", "--seed"]


@pytest.mark.parametrize("argv", [["--stpes", "5"], ["--steps", "a"], ["--precision", "half"], ["--steps"], ["extra"]])
def test_a_wrong_flag_ends_with_a_usage_message(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        parse(argv)
    assert caught.value.code == 2
    assert "python -m trainer.task" in capsys.readouterr().err


def test_help_tells_each_field_and_its_default(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse(["--help"])
    text = capsys.readouterr().out
    assert [field.name for field in fields(StrategyFlags) if f"--{field.name.replace('_', '-')}" not in text] == []
    assert f"default: {Config.steps}" in text


def test_the_rate_rises_evenly_to_its_peak_and_never_starts_at_zero() -> None:
    config = Config(steps=100, warmup=10, learning_rate=1.0)
    assert [learning_rate(config, step) for step in range(10)] == pytest.approx([(i + 1) / 10 for i in range(10)])


def test_after_the_warm_up_the_rate_falls_along_half_a_cosine_to_zero() -> None:
    config = Config(steps=110, warmup=10, learning_rate=2.0)
    rates = [learning_rate(config, step) for step in range(10, 110)]
    assert rates == sorted(rates, reverse=True)
    assert (rates[0], rates[50]) == pytest.approx((2.0, 1.0))
    assert 0 < rates[-1] < 0.001
    assert learning_rate(config, 110) == pytest.approx(0)


def test_without_a_warm_up_the_first_step_has_the_peak_rate() -> None:
    assert learning_rate(Config(steps=1, warmup=0, learning_rate=0.5), 0) == 0.5

from dataclasses import replace
from typing import Any

import pytest

from trainer.config import Config, parse, problems

WRONG: list[tuple[dict[str, Any], str]] = [
    ({"model_parallel": 0}, "--model-parallel is 0, must be at least 1"),
    ({"steps_per_call": 0}, "--steps-per-call is 0, must be at least 1"),
    ({"bytes_per_pack": 0}, "--bytes-per-pack is 0, must be at least 1"),
]


@pytest.mark.parametrize(("values", "words"), WRONG)
def test_a_wrong_value_is_one_phrase_that_names_the_flag(values: dict[str, Any], words: str) -> None:
    assert list(problems(replace(Config(), **values))) == [words]


def test_each_field_has_a_flag_of_its_name_with_dashes() -> None:
    flags = "--strategy multi_worker_mirrored --model-parallel 2 --steps-per-call 10 --bytes-per-pack 25"
    assert parse(flags.split()) == Config(model_parallel=2, steps_per_call=10, bytes_per_pack=25)

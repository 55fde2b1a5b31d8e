from dataclasses import replace
from typing import Any

import pytest
from tyro import cli

from trainer.config import Config, findings

WRONG: list[tuple[dict[str, Any], str]] = [
    ({"strategy": "model_parallel", "degree": 0}, "--degree is 0, must be at least 1"),
    ({"degree": 2}, "--degree is for model_parallel, not for --strategy multi_worker_mirrored"),
    ({"steps_per_call": 0}, "--steps-per-call is 0, must be at least 1"),
    ({"bytes_per_pack": 0}, "--bytes-per-pack is 0, must be at least 1"),
]


@pytest.mark.parametrize(("values", "words"), WRONG)
def test_a_wrong_value_is_one_phrase_that_names_the_flag(values: dict[str, Any], words: str) -> None:
    assert list(findings(replace(Config(), **values))) == [words]


def test_each_field_has_a_flag_of_its_name_with_dashes() -> None:
    flags = "--strategy multi_worker_mirrored --degree 2 --steps-per-call 10 --bytes-per-pack 25"
    found = cli(Config, args=flags.split())
    assert found == Config(degree=2, steps_per_call=10, bytes_per_pack=25)

"""Tests the flags of each strategy, and which flags are rejected."""

import pytest

from trainer.parallel import multi_worker_mirrored
from trainer.parallel.choice import parse
from trainer.vertex.errors import TrainerError


def test_a_pack_has_a_mebibyte_or_more() -> None:
    with pytest.raises(TrainerError, match=r"^--bytes-per-pack is 0, but it must be at least 1$"):
        parse(["--bytes-per-pack", "0"])


def test_each_field_has_a_flag_of_its_name_with_dashes() -> None:
    strategy, config = parse(["--strategy", "multi_worker_mirrored", "--bytes-per-pack", "25"])
    assert strategy is multi_worker_mirrored.STRATEGY
    assert config == multi_worker_mirrored.Flags(bytes_per_pack=25)


def test_help_names_the_flags_of_the_strategy(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse(["--help"])
    assert "--strategy multi_worker_mirrored: --bytes-per-pack." in " ".join(capsys.readouterr().out.split())

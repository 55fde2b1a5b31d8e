"""Tests the mesh for valid flags, and the errors for flags that don't match the machines, the model, or other flags."""

from typing import Any

import pytest

from trainer.cluster.world import Mesh
from trainer.parallel import choice
from trainer.parallel.mesh import lay_out, processes
from trainer.vertex.errors import TrainerError


def laid_out(machines: int = 3, per_machine: int = 8, **flags: Any) -> Mesh:
    strategy = choice.load(flags.get("strategy", "ddp"))
    return lay_out(strategy, strategy.flags(**flags), machines, per_machine, net=None)


def processes_of(name: str, gpus: int, **flags: Any) -> int:
    strategy = choice.load(name)
    return processes(strategy, strategy.flags(strategy=name, **flags), gpus)


@pytest.mark.parametrize(
    ("flags", "words", "shares"),
    [
        ({"strategy": "ddp"}, "replicate 24", 24),
        ({"strategy": "fsdp"}, "shard 24", 24),
        ({"strategy": "fsdp", "degree": 8}, "replicate 3 x shard 8", 24),
        ({"strategy": "fsdp", "degree": 4}, "replicate 6 x shard 4", 24),
        ({"strategy": "fsdp", "degree": 24}, "replicate 1 x shard 24", 24),
    ],
)
def test_what_holds_one_copy_lies_within_a_machine(flags: dict[str, Any], words: str, shares: int) -> None:
    found = laid_out(**flags)
    assert (str(found), found.size, found.data_size) == (words, 24, shares)


def test_a_machine_has_a_process_for_each_gpu() -> None:
    assert [processes_of(name, gpus=8) for name in ("ddp", "fsdp")] == [8, 8]
    assert processes_of("fsdp", gpus=8, degree=4) == 8


def test_a_machine_without_gpus_has_as_many_processes_as_a_copy_needs() -> None:
    assert [processes_of(name, gpus=0) for name in ("ddp", "fsdp")] == [1, 1]
    assert processes_of("fsdp", gpus=0, degree=3) == 3


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (
            {"strategy": "fsdp", "degree": 5},
            "--degree 5 doesn't evenly divide the number of processes, 24 (3 machines with 8 processes each)",
        ),
        (
            {"strategy": "fsdp", "micro_batches": 5},
            "--micro-batches is 5, but each process has fewer samples (--global-batch 96 / 24 = 4)",
        ),
        (
            {"strategy": "fsdp", "global_batch": 8},
            "--global-batch is 8, but each of the 24 processes needs at least one sample",
        ),
    ],
)
def test_what_does_not_fit_is_refused_with_the_numbers(flags: dict[str, Any], sentence: str) -> None:
    with pytest.raises(TrainerError) as caught:
        laid_out(**flags)
    assert str(caught.value) == sentence


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ("--degree 2", r"--strategy ddp doesn't support --degree \(supported by .*fsdp.*\)"),
        ("--no-reshard", r"--strategy ddp doesn't support --no-reshard \(supported by fsdp.*\)"),
        ("--bucket_cap_mb=1 --strategy=fsdp", r"--strategy fsdp doesn't support --bucket_cap_mb \(supported by ddp.*"),
    ],
)
def test_a_flag_of_another_strategy_is_refused(flags: str, words: str) -> None:
    with pytest.raises(TrainerError, match=f"^{words}$"):
        choice.parse(flags.split())


def test_help_shows_the_flags_of_the_chosen_strategy_and_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    for flags, words in (
        ([], "--strategy ddp: --bucket-cap-mb."),
        (["--strategy", "fsdp"], "fsdp: --degree, --reshard."),
    ):
        with pytest.raises(SystemExit):
            choice.parse([*flags, "--help"])
        text = capsys.readouterr().out
        assert words in text
        assert ("--no-reshard" in text) == bool(flags)


def test_a_degree_is_one_process_or_more() -> None:
    with pytest.raises(TrainerError, match=r"^--degree is 0, but it must be at least 1$"):
        choice.parse(["--strategy", "fsdp", "--degree", "0"])

"""Which mesh the flags mean, and which flags fit no machines, no model or not one another."""

from typing import Any

import pytest

from trainer.cluster.world import Mesh
from trainer.config import Config, parse
from trainer.parallel.mesh import lay_out, processes
from trainer.vertex.errors import TrainerError


def laid_out(machines: int = 3, per_machine: int = 8, **flags: Any) -> Mesh:
    return lay_out(Config(**flags), machines, per_machine, net=None)


@pytest.mark.parametrize(
    ("flags", "words", "shares"),
    [
        ({"strategy": "ddp"}, "replicate 24", 24),
        ({"strategy": "fsdp"}, "shard 24", 24),
        ({"strategy": "hsdp"}, "replicate 3 x shard 8", 24),
        ({"strategy": "hsdp", "degree": 4}, "replicate 6 x shard 4", 24),
        ({"strategy": "hsdp", "degree": 24}, "replicate 1 x shard 24", 24),
    ],
)
def test_what_holds_one_copy_lies_within_a_machine(flags: dict[str, Any], words: str, shares: int) -> None:
    found = laid_out(**flags)
    assert (str(found), found.size, found.data_size) == (words, 24, shares)


def test_a_machine_has_a_process_for_each_gpu() -> None:
    assert [processes(Config(strategy=name), gpus=8) for name in ("ddp", "fsdp", "hsdp")] == [8, 8, 8]


def test_a_machine_without_gpus_has_as_many_processes_as_a_copy_needs() -> None:
    assert [processes(Config(strategy=name), gpus=0) for name in ("ddp", "fsdp", "hsdp")] == [1, 1, 2]
    assert processes(Config(strategy="hsdp", degree=3), gpus=0) == 3


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (
            {"strategy": "hsdp", "degree": 5},
            "--degree is 5, must divide the 24 processes (3 machines with 8 each)",
        ),
        (
            {"strategy": "fsdp", "micro_batches": 5},
            "--micro-batches is 5, must be at most the samples of a process (--global-batch 96 / 24 = 4)",
        ),
        ({"strategy": "fsdp", "global_batch": 8}, "--global-batch is 8, must be at least one sample per process (24)"),
    ],
)
def test_what_does_not_fit_is_refused_with_the_numbers(flags: dict[str, Any], sentence: str) -> None:
    with pytest.raises(TrainerError) as caught:
        laid_out(**flags)
    assert str(caught.value) == sentence


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ({"degree": 2}, r"--degree is for .*hsdp.*, not for --strategy ddp"),
        ({"strategy": "fsdp", "schedule": "gpipe"}, r"--schedule is for .*, not for --strategy fsdp"),
        ({"reshard": False}, r"--no-reshard is for fsdp, hsdp.*, not for --strategy ddp"),
        ({"strategy": "fsdp", "bucket_cap_mb": 1}, r"--bucket-cap-mb is for ddp, not for --strategy fsdp"),
    ],
)
def test_a_flag_of_another_strategy_is_refused(flags: dict[str, Any], words: str) -> None:
    with pytest.raises(TrainerError, match=f"^{words}$"):
        laid_out(**flags)


def test_a_degree_is_one_process_or_more() -> None:
    with pytest.raises(TrainerError, match=r"^--degree is 0, must be at least 1$"):
        parse(["--strategy", "hsdp", "--degree", "0"])

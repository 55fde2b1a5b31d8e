"""Which mesh the flags mean, and which flags fit no machines, no model or not one another."""

from typing import Any

import pytest

from trainer.config import Config, parse
from trainer.errors import TrainerError
from trainer.meshes import Mesh, mesh, processes

CUTS: tuple[Any, ...] = ("hsdp", "pipeline", "tensor")
ALL: tuple[Any, ...] = ("ddp", "fsdp", *CUTS)
PIPELINE: dict[str, Any] = {"strategy": "pipeline", "degree": 4, "micro_batches": 4, "global_batch": 96}


def laid_out(machines: int = 3, per_machine: int = 8, blocks: int = 12, heads: int = 16, **flags: Any) -> Mesh:
    return mesh(Config(**flags), machines, per_machine, blocks, heads)


@pytest.mark.parametrize(
    ("flags", "words", "shares"),
    [
        ({"strategy": "ddp"}, "replicate 24", 24),
        ({"strategy": "fsdp"}, "shard 24", 24),
        ({"strategy": "hsdp"}, "replicate 3 x shard 8", 24),
        ({"strategy": "hsdp", "degree": 4}, "replicate 6 x shard 4", 24),
        ({"strategy": "hsdp", "degree": 24}, "replicate 1 x shard 24", 24),
        ({"strategy": "tensor"}, "shard 3 x tensor 8", 3),
        (PIPELINE, "replicate 6 x stage 4", 6),
    ],
)
def test_what_holds_one_copy_lies_within_a_machine(flags: dict[str, Any], words: str, shares: int) -> None:
    found = laid_out(**flags)
    assert (str(found), found.size, found.data_size) == (words, 24, shares)


def test_a_machine_has_a_process_for_each_gpu() -> None:
    assert [processes(Config(strategy=name), gpus=8) for name in ALL] == [8] * 5


def test_a_machine_without_gpus_has_as_many_processes_as_a_copy_needs() -> None:
    assert [processes(Config(strategy=name), gpus=0) for name in ALL] == [1, 1, 2, 2, 2]
    assert [processes(Config(strategy=name, degree=3), gpus=0) for name in CUTS] == [3, 3, 3]


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (
            {"strategy": "hsdp", "degree": 5},
            "--degree is 5, must divide the 24 processes (3 machines with 8 each)",
        ),
        (
            {"strategy": "tensor", "heads": 4},
            "--degree is 8, must divide the 4 attention heads of the model",
        ),
        (
            {"strategy": "fsdp", "micro_batches": 5},
            "--micro-batches is 5, must be at most the samples of a process (--global-batch 96 / 24 = 4)",
        ),
        (
            PIPELINE | {"blocks": 3},
            "--degree 4 with --schedule 1f1b makes 4 stages of 3 blocks",
        ),
        (
            PIPELINE | {"blocks": 7, "schedule": "interleaved"},
            "--degree 4 with --schedule interleaved makes 8 stages of 7 blocks",
        ),
        (
            PIPELINE | {"micro_batches": 1},
            "--micro-batches is 1, must be at least --degree (4); with 16 stages idle little",
        ),
        (
            PIPELINE | {"micro_batches": 6, "global_batch": 36, "schedule": "interleaved"},
            "--micro-batches is 6, must be a multiple of --degree (4) for --schedule interleaved",
        ),
        (
            PIPELINE | {"global_batch": 100},
            "--global-batch is 100, must be a multiple of 24 (6 pipelines x 4 micro-batches)",
        ),
    ],
)
def test_what_does_not_fit_is_refused_with_the_numbers(flags: dict[str, Any], sentence: str) -> None:
    with pytest.raises(TrainerError) as caught:
        laid_out(**flags)
    assert str(caught.value) == sentence


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (("--strategy", "hsdp", "--degree", "0"), "--degree is 0, must be at least 1"),
        (("--degree", "2"), "--degree is for hsdp, pipeline, tensor, not for --strategy ddp"),
        (
            ("--strategy", "fsdp", "--schedule", "gpipe"),
            "--schedule is for pipeline, not for --strategy fsdp",
        ),
        (
            ("--strategy", "pipeline", "--no-reshard"),
            "--no-reshard is for fsdp, hsdp, tensor, not for --strategy pipeline",
        ),
    ],
)
def test_a_flag_of_another_strategy_is_refused(flags: tuple[str, ...], sentence: str) -> None:
    with pytest.raises(TrainerError) as caught:
        parse(flags)
    assert str(caught.value) == sentence

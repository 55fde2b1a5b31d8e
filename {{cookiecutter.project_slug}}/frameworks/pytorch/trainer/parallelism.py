"""The flags of parallelism: how model and batch are divided over the GPUs."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

# The strategies that divide one copy of the model over --degree GPUs, and what each of these GPUs holds.
SPLITS = {"hsdp": "shard", "pipeline": "stage", "tensor": "tensor"}
SHARDED = ("fsdp", "hsdp", "tensor")


@dataclass(frozen=True, kw_only=True)
class Parallelism:
    """The flags of Config for parallelism."""

    strategy: Literal["ddp", "fsdp", "hsdp", "pipeline", "tensor", "horovod"] = "ddp"
    """What a GPU holds. ddp: the model. fsdp: a shard of it. hsdp: a shard, and each machine a whole copy.
    pipeline: some of the layers. tensor: a part of every layer, and of that a shard. horovod: the model, as in ddp,
    where Horovod is installed."""
    degree: int | None = None
    """GPUs that hold one copy together, for hsdp, pipeline and tensor; by default those of one machine."""
    schedule: Literal["gpipe", "1f1b", "interleaved"] = "1f1b"
    """Order of a pipeline's micro-batches. 1f1b keeps the activations of fewer than gpipe; interleaved gives each
    GPU two stages, which idle less and send more."""
    reshard: bool = True
    """With shards: free a block's gathered weights after the forward pass, and gather them again for the backward
    pass. Without it a step is faster and needs more memory."""
    recompute: bool = False
    """Keep only the inputs of blocks for the backward pass, and compute the rest again: a third more computing for
    much less memory (activation checkpointing)."""
    compile: bool = False
    """Compile the blocks. The first step takes a minute longer, the others less time. Needs a C++ compiler."""


def problems(flags: Parallelism) -> Iterator[str]:
    """What is wrong with the values, each in one phrase that names the flag."""
    if flags.degree is not None and flags.degree < 1:
        yield f"--degree is {flags.degree}, must be at least 1"
    if flags.degree is not None and flags.strategy not in SPLITS:
        yield f"--degree is for {', '.join(SPLITS)}, not for --strategy {flags.strategy}"
    if flags.schedule != Parallelism.schedule and flags.strategy != "pipeline":
        yield f"--schedule is for pipeline, not for --strategy {flags.strategy}"
    if not flags.reshard and flags.strategy not in SHARDED:
        yield f"--no-reshard is for {', '.join(SHARDED)}, not for --strategy {flags.strategy}"

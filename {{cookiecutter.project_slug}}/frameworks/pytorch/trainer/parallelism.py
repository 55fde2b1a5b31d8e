"""The flags of parallelism: how model and batch are divided over the GPUs."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Literal

from trainer import flags
from trainer.flags import module_in

OF_SOME = ("bucket_cap_mb", "degree", "schedule", "reshard")  # that not every strategy takes


@dataclass(frozen=True, kw_only=True)
class Parallelism:
    """The flags of Config for parallelism."""

    strategy: Annotated[str, module_in("parallel")] = "ddp"
    bucket_cap_mb: int = 64
    """MiB of gradients that travel in one all-reduce: large buckets fill a fast network and Reduction Server, while the
    first of several small ones leaves before the last gradient is known."""
    degree: int | None = None
    """GPUs along the last of two dimensions of the mesh that the chief names; by default those of one machine."""
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


def findings(config: Parallelism) -> Iterator[str]:
    """Yield a phrase, which names the flag, for each wrong value; parallel/mesh.py says which do not fit together."""
    yield from flags.at_least(1, config, "bucket_cap_mb", "degree")

"""The flags of parallelism: how model and batch are divided over the GPUs."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated

from trainer import flags
from trainer.flags import module_in


@dataclass(frozen=True, kw_only=True)
class Parallelism:
    """The flags of Config for parallelism."""

    strategy: Annotated[str, module_in("parallel")] = "multi_worker_mirrored"
    model_parallel: int = 1
    """GPUs of each machine that share the layers of one model; 1: each GPU has the whole model."""
    steps_per_call: int = 1
    """Steps that TensorFlow takes without coming back to Python; calls end where a report or a checkpoint is due."""
    bytes_per_pack: int = 64
    """MiB of gradients that travel in one all-reduce: large packs fill a fast network and Reduction Server, while the
    first of several small ones leaves before the last gradient is known."""


def problems(config: Parallelism) -> Iterator[str]:
    """Yield a phrase, which names the flag, for each wrong value."""
    yield from flags.at_least(1, config, "model_parallel", "steps_per_call", "bytes_per_pack")

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
    degree: int | None = None
    """GPUs of each machine that share the layers of one model, with model_parallel; by default all of them."""
    steps_per_call: int = 1
    """Steps that TensorFlow takes without coming back to Python; calls end where a report or a checkpoint is due."""
    bytes_per_pack: int = 64
    """MiB of gradients that travel in one all-reduce: large packs fill a fast network and Reduction Server, while the
    first of several small ones leaves before the last gradient is known."""


def findings(config: Parallelism) -> Iterator[str]:
    """Yield a phrase, which names the flag, for each wrong value."""
    yield from flags.at_least(1, config, "degree", "steps_per_call", "bytes_per_pack")
    if config.degree is not None and config.strategy != "model_parallel":
        yield f"--degree is for model_parallel, not for --strategy {config.strategy}"

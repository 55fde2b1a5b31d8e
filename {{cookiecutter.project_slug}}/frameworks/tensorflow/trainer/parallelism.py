"""The flags of parallelism: how model and batch are divided over the GPUs.

- `multi_worker_mirrored`: every GPU has the whole model, and each step all-reduces the gradients.
- `multi_worker_mirrored` with `--model-parallel N`: every machine has one model, its layers placed on N GPUs.
- `parameter_server`: servers have the model, and workers fetch it and send gradients, each at its own pace.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

AT_LEAST_1 = ("model_parallel", "steps_per_call", "bytes_per_pack")


@dataclass(frozen=True, kw_only=True)
class Parallelism:
    """The flags of Config for parallelism."""

    strategy: Literal["multi_worker_mirrored", "parameter_server"] = "multi_worker_mirrored"
    """All GPUs take each step together; or each worker updates parameter servers at its own pace, a step being then one
    update by each part of the global batch, of which there are as many as workers: a run's samples stay the same."""
    model_parallel: int = 1
    """GPUs of each machine that share the layers of one model; 1: each GPU has the whole model."""
    steps_per_call: int = 1
    """Steps that TensorFlow takes without coming back to Python; calls end where a report or a checkpoint is due."""
    bytes_per_pack: int = 64
    """MiB of gradients that travel in one all-reduce: large packs fill a fast network and Reduction Server, while the
    first of several small ones leaves before the last gradient is known."""


def problems(flags: Parallelism) -> Iterator[str]:
    """What is wrong with the values, each in one phrase that names the flag."""
    for name in AT_LEAST_1:
        if getattr(flags, name) < 1:
            yield f"--{name.replace('_', '-')} is {getattr(flags, name)}, must be at least 1"
    if flags.strategy == "parameter_server" and flags.model_parallel > 1:
        yield f"--model-parallel is {flags.model_parallel}, must be 1 with --strategy parameter_server"

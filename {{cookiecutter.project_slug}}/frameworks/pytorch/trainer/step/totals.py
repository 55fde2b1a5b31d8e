"""Sums over samples: of the loss, of each metric, and their number."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from trainer import model
from trainer.cluster.world import World
from trainer.data import Batch
from trainer.vertex.errors import TrainerError

RESERVED = ("loss", "samples")  # names under which the loop itself adds up
Totals = dict[str, Tensor]  # one number each, by name; "samples" is their number


def add(totals: Totals, more: Totals) -> None:
    """Add to the totals in place."""
    for name, value in more.items():
        totals[name] = totals[name] + value if name in totals else value


def counted(totals: Totals, is_taken: Tensor) -> Totals:
    """Return the totals of a step; zeros where it is not taken."""
    return {name: value.where(is_taken, 0) for name, value in totals.items()}


@torch.no_grad()
def measure(output: Tensor | None, batch: Batch, losses: Tensor | None = None, mask: Tensor | float = 1) -> Totals:
    """Sum over the samples whose mask is 1; empty without an output, as in a pipeline before its last stage.

    Raises:
        TrainerError: losses or metrics are not one number per sample.
    """
    if output is None:
        return {}
    losses = model.losses(output, batch) if losses is None else losses
    require_one_per_sample(output, losses, metrics := model.metrics(output, batch), len(batch.inputs))
    of_each = {"loss": losses, **metrics, "samples": torch.ones_like(losses)}
    return {name: (values * mask).sum() for name, values in of_each.items()}


def means(totals: Totals, world: World) -> Mapping[str, float]:
    """Divide the sums of all processes by their samples; empty without any. Every process must call it."""
    of_each = world.gather({name: float(value) for name, value in totals.items()})
    names = dict.fromkeys(name for rank in of_each for name in rank)
    sums = {name: sum(rank.get(name, 0.0) for rank in of_each) for name in names}
    samples = sums.pop("samples")
    return {name: value / samples for name, value in sums.items()} if samples else {}


def require_one_per_sample(output: Any, losses: Any, metrics: Mapping[str, Any], count: int) -> None:
    """Return if there is one output, and one number for each of so many samples.

    A mean would be averaged again, and its gradients divided once too often, without a word.

    Raises:
        TrainerError: the output is no tensor, a result has another shape, or a metric the loop's own name.
    """
    if not hasattr(output, "shape"):
        kind = type(output).__name__
        raise TrainerError(f"the model of trainer/model.py returns a {kind}, must return one tensor: it is exported so")
    for name in metrics.keys() & RESERVED:
        raise TrainerError(f'metrics() of trainer/model.py returns "{name}", which the loop reports; rename it')
    results = {"losses()": losses, **{f'"{name}" of metrics()': value for name, value in metrics.items()}}
    for name, shape in ((name, tuple(getattr(value, "shape", ()))) for name, value in results.items()):
        if shape != (count,):
            raise TrainerError(
                f"{name} in trainer/model.py has the shape {shape}, must be ({count},): one number per sample, no mean"
            )

"""Sums over samples: of the loss, of each metric, and their number."""

from collections.abc import Mapping

import torch
from torch import Tensor

from trainer import model, per_sample
from trainer.cluster.world import World
from trainer.data import Batch

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
    per_sample.require(output, losses, metrics := model.metrics(output, batch), len(batch.inputs))
    of_each = {"loss": losses, **metrics, "samples": torch.ones_like(losses)}
    return {name: (values * mask).sum() for name, values in of_each.items()}


def means(totals: Totals, world: World) -> Mapping[str, float]:
    """Divide the sums of all processes by their samples; empty without any. Every process must call it."""
    of_each = world.gather({name: float(value) for name, value in totals.items()})
    names = dict.fromkeys(name for rank in of_each for name in rank)
    sums = {name: sum(rank.get(name, 0.0) for rank in of_each) for name in names}
    samples = sums.pop("samples")
    return {name: value / samples for name, value in sums.items()} if samples else {}

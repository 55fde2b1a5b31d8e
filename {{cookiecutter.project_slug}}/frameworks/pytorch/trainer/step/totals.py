"""Sums the loss and the metrics over samples, and counts the samples."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from trainer import model
from trainer.cluster.world import World
from trainer.data import Batch
from trainer.vertex.errors import TrainerError

RESERVED = ("loss", "samples")  # names that the loop itself reports
Totals = dict[str, Tensor]  # a scalar for each name; "samples" is the number of samples


def add(totals: Totals, more: Totals) -> None:
    """Add totals to the existing totals, in place."""
    for name, value in more.items():
        totals[name] = totals[name] + value if name in totals else value


def counted(totals: Totals, is_taken: Tensor) -> Totals:
    """Return the totals of a step. If the step is skipped, return zeros."""
    return {name: value.where(is_taken, 0) for name, value in totals.items()}


@torch.no_grad()
def measure(output: Tensor | None, batch: Batch, losses: Tensor | None = None, mask: Tensor | float = 1) -> Totals:
    """Return the sums of the loss and the metrics over the samples whose mask value is 1.

    In a pipeline, only the last stage has totals. In other pipeline stages, return an empty dictionary.

    Raises:
        TrainerError: if losses() or metrics() doesn't return one number per sample.
    """
    if output is None:
        return {}
    losses = model.losses(output, batch) if losses is None else losses
    require_one_per_sample(output, losses, metrics := model.metrics(output, batch), len(batch.inputs))
    of_each = {"loss": losses, **metrics, "samples": torch.ones_like(losses)}
    return {name: (values * mask).sum() for name, values in of_each.items()}


def means(totals: Totals, world: World) -> Mapping[str, float]:
    """Return the mean loss and metrics over the samples of all processes.

    Every process must call this function. If there are no samples, return an empty dictionary.
    """
    of_each = world.gather({name: float(value) for name, value in totals.items()})
    names = dict.fromkeys(name for rank in of_each for name in rank)
    sums = {name: sum(rank.get(name, 0.0) for rank in of_each) for name in names}
    samples = sums.pop("samples")
    return {name: value / samples for name, value in sums.items()} if samples else {}


def require_one_per_sample(output: Any, losses: Any, metrics: Mapping[str, Any], count: int) -> None:
    """Check that the model's output is a tensor and that losses and metrics contain one number per sample.

    If losses() returned a mean, the training loop would silently average it again, so the gradients would be too small.

    Raises:
        TrainerError: if the output isn't a tensor, if a shape is wrong, or if a metric has a reserved name.
    """
    if not hasattr(output, "shape"):
        kind = type(output).__name__
        raise TrainerError(f"the model in trainer/model.py returns a {kind}, which can't be exported; return a tensor")
    for name in metrics.keys() & RESERVED:
        raise TrainerError(
            f'metrics() in trainer/model.py returns "{name}", which is a reserved name; rename the metric'
        )
    results = {"losses()": losses, **{f'"{name}" of metrics()': value for name, value in metrics.items()}}
    for name, shape in ((name, tuple(getattr(value, "shape", ()))) for name, value in results.items()):
        if shape != (count,):
            raise TrainerError(
                f"{name} in trainer/model.py has shape {shape} instead of {(count,)};"
                " return one number per sample, not a mean"
            )

"""Sums the loss and the metrics over samples, and counts the samples."""

from collections.abc import Mapping
from typing import Any, TypeAlias

import keras
import tensorflow as tf

from trainer import model
from trainer.data import Batch
from trainer.vertex.errors import TrainerError

RESERVED = ("loss", "samples")  # names that the loop itself reports
Totals: TypeAlias = tf.Tensor  # a value for each of `names`, then the number of samples


def measure(output: tf.Tensor, batch: Batch, losses: tf.Tensor, mask: tf.Tensor | float = 1.0) -> Totals:
    """Return the sums of the loss and the metrics over the samples whose mask value is 1."""
    of_each = (losses, *model.metrics(output, batch).values(), tf.ones_like(losses))
    return tf.stack([tf.reduce_sum(values * mask) for values in of_each])


def counted(totals: Totals, is_taken: tf.Tensor) -> Totals:
    """Return the totals of a step. If the step is skipped, return zeros."""
    return tf.where(is_taken, totals, 0.0)


def score(net: keras.Model, batch: Batch, mask: tf.Tensor) -> Totals:
    """Return the sums of the loss and the metrics over a batch, without training on it."""
    output = net(batch.inputs, training=False)
    return measure(output, batch, model.losses(output, batch), mask)


def names(net: keras.Model, example: Batch) -> tuple[str, ...]:
    """Return the names of the totals that `measure` returns, excluding the sample count.

    Raises:
        TrainerError: if losses() or metrics() doesn't return one number per sample.
    """
    output = net(example.inputs, training=False)
    metrics = model.metrics(output, example)
    require_one_per_sample(output, model.losses(output, example), metrics, len(example.inputs))
    return ("loss", *metrics)


def means(totals: Totals, names: tuple[str, ...]) -> Mapping[str, float]:
    """Return the mean loss and metrics over the samples. If there are no samples, return an empty dictionary."""
    *sums, samples = totals.numpy().tolist()
    return {name: value / samples for name, value in zip(names, sums, strict=True)} if samples else {}


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

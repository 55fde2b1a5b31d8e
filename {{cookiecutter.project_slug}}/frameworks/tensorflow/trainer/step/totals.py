"""Sums over samples: of the loss, of each metric, and their number."""

from collections.abc import Mapping
from typing import Any, TypeAlias

import keras
import tensorflow as tf

from trainer import model
from trainer.data import Batch
from trainer.vertex.errors import TrainerError

RESERVED = ("loss", "samples")  # names under which the loop itself adds up
Totals: TypeAlias = tf.Tensor  # one number each, by the order of `names`; the last is the number of samples


def measure(output: tf.Tensor, batch: Batch, losses: tf.Tensor, mask: tf.Tensor | float = 1.0) -> Totals:
    """Sum over the samples whose mask is 1."""
    of_each = (losses, *model.metrics(output, batch).values(), tf.ones_like(losses))
    return tf.stack([tf.reduce_sum(values * mask) for values in of_each])


def counted(totals: Totals, is_taken: tf.Tensor) -> Totals:
    """Return the totals of a step; zeros where it is not taken."""
    return tf.where(is_taken, totals, 0.0)


def score(net: keras.Model, batch: Batch, mask: tf.Tensor) -> Totals:
    """Measure one batch, without training."""
    output = net(batch.inputs, training=False)
    return measure(output, batch, model.losses(output, batch), mask)


def names(net: keras.Model, example: Batch) -> tuple[str, ...]:
    """Return the names of the totals that `measure` returns, but for the number of samples.

    Raises:
        TrainerError: losses or metrics are not one number per sample.
    """
    output = net(example.inputs, training=False)
    metrics = model.metrics(output, example)
    require_one_per_sample(output, model.losses(output, example), metrics, len(example.inputs))
    return ("loss", *metrics)


def means(totals: Totals, names: tuple[str, ...]) -> Mapping[str, float]:
    """Divide the sums by their samples; empty without any."""
    *sums, samples = totals.numpy().tolist()
    return {name: value / samples for name, value in zip(names, sums, strict=True)} if samples else {}


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

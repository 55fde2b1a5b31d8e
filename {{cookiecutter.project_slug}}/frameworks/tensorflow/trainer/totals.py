"""Sums over samples: of the loss, of each metric, and their number."""

from collections.abc import Mapping
from typing import TypeAlias

import keras
import tensorflow as tf

from trainer import model, per_sample
from trainer.data import Batch

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
    per_sample.require(output, model.losses(output, example), metrics, len(example.inputs))
    return ("loss", *metrics)


def means(totals: Totals, names: tuple[str, ...]) -> Mapping[str, float]:
    """Divide the sums by their samples; empty without any."""
    *sums, samples = totals.numpy().tolist()
    return {name: value / samples for name, value in zip(names, sums, strict=True)} if samples else {}

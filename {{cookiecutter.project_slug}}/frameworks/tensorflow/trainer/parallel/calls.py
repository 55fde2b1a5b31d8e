"""Calls of TensorFlow: each takes one step or, with --steps-per-call, several."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from trainer.cluster.world import World
from trainer.config import Config, learning_rate, traced_steps
from trainer.data import Batch
from trainer.samples.batches import train_batches
from trainer.samples.shards import Dataset


class Steps(NamedTuple):
    """Consecutive steps, at most `--steps-per-call` of them."""

    parts: list[Batch]  # of each share; each array has the steps of a call as its first dimension, then the samples
    rates: list[float]  # learning rate of each step; behind the last one the parts are filled up
    end: int  # how many steps of the run are finished then


def calls(config: Config, dataset: Dataset, start: int, world: World) -> Iterator[Steps]:
    """Yield all steps from `start` on, with this machine's shares of each global batch.

    The next call's are read while the present one computes.
    """
    steps = _calls(config, dataset, start, world)
    with ThreadPoolExecutor(1) as reader:
        read = reader.submit(next, steps, None)
        while (now := read.result()) is not None:
            read = reader.submit(next, steps, None)
            yield now


def _calls(config: Config, dataset: Dataset, start: int, world: World) -> Iterator[Steps]:
    size = world.mesh.data_size
    shares = (train_batches(dataset, config, start=start, rank=rank, world_size=size) for rank in world.data_ranks)
    step, batches = start, zip(*shares, strict=True)
    while step < config.steps:
        rates = [learning_rate(config, i) for i in range(step, step + until_due(config, step))]
        of_each_share = zip(*islice(batches, len(rates)), strict=True)
        step += len(rates)
        yield Steps([stack(taken, config.steps_per_call) for taken in of_each_share], rates, step)
    next(batches, None)  # there are none; those who make them learn that, and end


def until_due(config: Config, step: int) -> int:
    """Steps from this one on that one call may take: it passes no report, evaluation, checkpoint or end of a trace."""
    regular = [config.log_every, config.evaluate_every, config.checkpoint_every]
    regular += [config.compare_ranks_every] if config.compare_ranks_every else []
    traced = traced_steps(config)
    ends = [end - step for end in (traced.start, traced.stop) if end > step]
    return min(config.steps_per_call, config.steps - step, *(every - step % every for every in regular), *ends)


def stack(batches: tuple[Batch, ...], count: int) -> Batch:
    """Batches of one shape as one, with a new first axis of length `count`; so a shorter call is no other function."""
    filled = [*batches, *batches[-1:] * (count - len(batches))]
    return Batch(*(arrays[0][np.newaxis] if count == 1 else np.stack(arrays) for arrays in zip(*filled, strict=True)))


def tensors(steps: Steps, config: Config) -> tuple[list[Batch], tf.Tensor, tf.Tensor]:
    """Arguments of a call: parts, learning rates, filled up with zeros to a whole call, and the number of steps."""
    rates = [*steps.rates, *[0.0] * (config.steps_per_call - len(steps.rates))]
    return on_host(steps.parts), tf.constant(rates), tf.constant(len(steps.rates))


def on_host(arrays: Any) -> Any:
    """A batch, or whatever holds arrays, with tensors in their place."""
    with tf.device("CPU:0"):  # else the parts of all devices would pass through the first GPU
        return tf.nest.map_structure(tf.constant, arrays)


def turns(config: Config, count: tf.Tensor) -> Any:
    """Return the indices of a call's steps: a loop in the graph, or, where a call is one step, no loop at all."""
    return tf.range(count) if config.steps_per_call > 1 else range(1)


def turn(batch: Batch, i: Any) -> Batch:
    """The batch of one step of a call."""
    return Batch(*(array[i] for array in batch))

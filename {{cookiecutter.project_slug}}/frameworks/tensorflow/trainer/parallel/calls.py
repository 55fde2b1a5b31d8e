"""Calls of TensorFlow: each takes one step or, with --steps-per-call, several."""

import math
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import Any, NamedTuple, Protocol

import numpy as np
import tensorflow as tf

from trainer.config import Config, learning_rate, traced_steps
from trainer.data import Batch
from trainer.job import Job
from trainer.shards import Data, Dataset, train_batches
from trainer.totals import Totals


class Steps(NamedTuple):
    """Consecutive steps, at most `--steps-per-call` of them."""

    parts: list[Batch]  # of each device; each array has the steps of a call as its first dimension, then the samples
    rates: list[float]  # learning rate of each step; behind the last one the parts are filled up with zeros
    end: int  # how many steps of the run are finished then


class Replicas(Protocol):
    """Takers of the steps of a run: the devices of all machines, or the workers of parameter servers."""

    is_chief: bool
    names: tuple[str, ...]  # of the totals
    ranks: range  # of the parts of each global batch that this machine gives out
    size: int  # parts of a global batch
    device_count: int
    device_name: str

    def take(self, steps: Steps) -> Totals: ...

    def settle_reducers(self) -> dict[str, float]: ...

    @property
    def observed(self) -> dict[str, float]: ...

    def evaluate(self, data: Data) -> Totals: ...


def calls(job: Job, dataset: Dataset, start: int, ranks: range, world_size: int) -> Iterator[Steps]:
    """Yield all steps from `start` on, with the parts of each global batch for these of `world_size` devices.

    The next call's are read while the present one computes.
    """
    # A GPU may work while Python waits for a batch, and TensorFlow does not tell.
    idle_timer = None if tf.config.list_physical_devices("GPU") else (lambda: lambda: math.inf)
    return job.clock.timed(_read_ahead(_calls(job.config, dataset, start, ranks, world_size)), idle_timer)


def _read_ahead(steps: Iterator[Steps]) -> Iterator[Steps]:
    with ThreadPoolExecutor(1) as reader:
        read = reader.submit(next, steps, None)
        while (now := read.result()) is not None:
            read = reader.submit(next, steps, None)
            yield now


def _calls(config: Config, dataset: Dataset, start: int, ranks: range, world_size: int) -> Iterator[Steps]:
    def part(rank: int) -> Iterator[Batch]:
        return train_batches(dataset, config, start=start, rank=rank, world_size=world_size)

    step, batches = start, zip(*map(part, ranks), strict=True)
    while step < config.steps:
        rates = [learning_rate(config, i) for i in range(step, step + until_due(config, step))]
        of_each_device = zip(*islice(batches, len(rates)), strict=True)
        step += len(rates)
        yield Steps([stack(taken, config.steps_per_call) for taken in of_each_device], rates, step)
    next(batches, None)  # there are none; those who make them learn that, and end


def until_due(config: Config, step: int) -> int:
    """Steps from this one on that one call may take: it passes no report, evaluation, checkpoint or end of a trace."""
    regular = (config.log_every, config.evaluate_every, config.checkpoint_every)
    traced = traced_steps(config)
    ends = [end - step for end in (traced.start, traced.stop) if end > step]
    return min(config.steps_per_call, config.steps - step, *(every - step % every for every in regular), *ends)


def stack(batches: Sequence[Batch], count: int) -> Batch:
    """Batches of one shape as one, with a new first axis of length `count`; so a shorter call is no other function."""
    if count == 1:
        return Batch(*(array[np.newaxis] for array in batches[0]))
    whole = Batch(*(np.zeros((count, *array.shape), array.dtype) for array in batches[0]))
    for i, batch in enumerate(batches):
        for target, array in zip(whole, batch, strict=True):
            target[i] = array
    return whole


def tensors(arrays: Any) -> Any:
    """A batch, or whatever holds arrays, with tensors in their place."""
    with tf.device("CPU:0"):  # else the parts of all devices would pass through the first GPU
        return tf.nest.map_structure(tf.constant, arrays)


def counted(rates: list[float], config: Config) -> tuple[tf.Tensor, tf.Tensor]:
    """The learning rates, filled up with zeros to the steps of a whole call, and how many they are."""
    return tf.constant([*rates, *[0.0] * (config.steps_per_call - len(rates))]), tf.constant(len(rates))


def turns(config: Config, count: tf.Tensor) -> Any:
    """Return the indices of a call's steps: a loop in the graph, or, where a call is one step, no loop at all."""
    return tf.range(count) if config.steps_per_call > 1 else range(1)


def turn(batch: Batch, i: Any) -> Batch:
    """The batch of one step of a call."""
    return Batch(*(array[i] for array in batch))

"""A step again, sample by sample, to find out whose gradient is no number; loaded only for a run that ends so."""

import math
from dataclasses import replace
from itertools import compress, count

import tensorflow as tf

from trainer import nonfinite, train
from trainer.cluster.world import World
from trainer.data import Batch
from trainer.job import Job
from trainer.parallel.calls import on_host
from trainer.parallel.strategy import Strategy
from trainer.shards import Dataset, micro_batches, train_batches
from trainer.state import State


def error(job: Job, strategy: Strategy, world: World, state: State) -> nonfinite.GradientError:
    """Return the error of a run whose state has stayed as it was before the step. Every machine must call it.

    Where devices hold parts of the model, or servers all of it, nobody can take the step alone: the error names all
    samples.
    """
    skipped = int(state.skipped.read_value()) - job.config.skip_nonfinite
    step = state.step - (skipped if strategy.computes else math.ceil(skipped / world.mesh.data_size))  # or of parts
    places = poisoned(job, strategy, world, state, step) if [*world.mesh.sizes] == ["replicate"] else []
    of_each = world.gather([place in places for place in range(job.config.global_batch)])
    return nonfinite.GradientError(job, step, [[*compress(count(), own)] for own in of_each])


def poisoned(job: Job, strategy: Strategy, world: World, state: State, step: int) -> list[int]:
    """Return the places in the global batch of this machine's samples whose own gradients are no numbers."""
    config, size = replace(job.config, data_processes=0), world.mesh.data_size
    places = []
    for rank in world.data_ranks:
        batch = next(train_batches(Dataset(job.shards, "train"), config, start=step, rank=rank, world_size=size))
        parts = micro_batches(on_host(batch), len(batch.inputs))
        places += [rank + i * size for i, part in enumerate(parts) if not is_finite(job, strategy, world, state, part)]
    return places


def is_finite(job: Job, strategy: Strategy, world: World, state: State, part: Batch) -> bool:
    _, gradients = train.forward_backward(job.config, Strategy(), state.net, part, world)
    return bool(tf.math.is_finite(tf.linalg.global_norm(gradients)))

"""A step again, sample by sample, to find out whose gradient is no number; loaded only for a run that ends so."""

from dataclasses import replace

import torch

from trainer import nonfinite, train
from trainer.cluster import devices
from trainer.cluster.world import World
from trainer.data import Batch
from trainer.job import Job
from trainer.parallel.strategy import Strategy
from trainer.shards import Dataset, micro_batches, train_batches
from trainer.state import State


def error(job: Job, strategy: Strategy, world: World, state: State) -> nonfinite.GradientError:
    """Return the error of a run whose state has stayed as it was before the step. Every process must call it.

    Where processes hold parts of the model, nobody can take the step alone: the error names all samples.
    """
    step = state.step - (int(state.skipped) - job.config.skip_nonfinite)
    places = poisoned(job, strategy, world, state, step) if world.dimensions == Strategy.dimensions else []
    return nonfinite.GradientError(job, step, world.gather(places))


def poisoned(job: Job, strategy: Strategy, world: World, state: State, step: int) -> list[int]:
    """Return the places in the global batch of this process's samples whose own gradients are no numbers."""
    config, rank, size = replace(job.config, data_processes=0), world.data_rank, world.data_size
    batch = next(train_batches(Dataset(job.shards, "train"), config, start=step, rank=rank, world_size=size))
    parts = micro_batches(devices.copy(batch, world.device), len(batch.inputs))
    state.step = step
    with strategy.sync(state.net, last=False):  # each takes its own samples: nothing is averaged
        return [rank + i * size for i, part in enumerate(parts) if not is_finite(job, strategy, world, state, part)]


def is_finite(job: Job, strategy: Strategy, world: World, state: State, part: Batch) -> bool:
    net = strategy.bare(state.net)
    net.zero_grad()
    torch.manual_seed(train.step_seed(job.config, state.step, world.data_rank))
    train.forward_backward(job.config, Strategy(), net, part, world)
    return all(bool(p.grad.isfinite().all()) for p in net.parameters() if p.grad is not None)

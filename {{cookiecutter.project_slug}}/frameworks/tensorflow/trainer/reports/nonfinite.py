"""Reports the step, the processes, and the samples that caused a NaN or infinite gradient.

To find the samples, this module repeats the step for each sample.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import compress, count

import tensorflow as tf

from trainer.cluster.devices import on_host
from trainer.cluster.world import World
from trainer.config import Job
from trainer.data import Batch
from trainer.parallel.strategy import Strategy
from trainer.samples.batches import micro_batches, order, train_batches
from trainer.samples.shards import Dataset
from trainer.step.state import State
from trainer.vertex.errors import TrainerError

SHOWN = 50  # the number of samples in a message; a global batch may have thousands
CURE = (
    "check these samples and the operations in trainer/model.py, lower --learning-rate, or use --skip-nonfinite to"
    " skip a few steps with such gradients"
)


class GradientError(TrainerError):
    """An error that lists the samples with NaN or infinite gradients.

    Args:
        step: the index of the step.
        places: each process's samples with NaN or infinite gradients, as positions in the global batch. `places` is
            empty if the samples are unknown.
    """

    def __init__(self, job: Job, step: int, places: Sequence[Sequence[int]]) -> None:
        size, numbers = job.config.global_batch, order(len(Dataset(job.shards, "train")), job.config)

        def samples(places: Iterable[int]) -> str:
            named = [str(numbers[step * size + place]) for place in places]
            rest = f" and {len(named) - SHOWN} more" if len(named) > SHOWN else ""
            return f"samples {', '.join(named[:SHOWN])}{rest}"

        guilty = [f"{job.cluster.process(i, len(places))} ({samples(own)})" for i, own in enumerate(places) if own]
        whose = f"on {', '.join(guilty)}" if guilty else f"for a batch of {samples(range(size))}"
        super().__init__(f"the gradient of step {step + 1} is NaN or infinite {whose}; {CURE}")


def error(job: Job, strategy: Strategy, world: World, state: State) -> GradientError:
    """Return the error for a step with a NaN or infinite gradient. Every machine must call this function.

    The failed step must not have changed the state, because this function repeats the step to find the samples. If
    devices hold only parts of the model, or if parameter servers hold the model, no machine can repeat the step alone.
    In this case, the error lists all samples in the batch.
    """
    skipped = int(state.skipped.read_value()) - job.config.skip_nonfinite
    step = state.step - (skipped if strategy.computes else math.ceil(skipped / world.mesh.data_size))  # or parts
    places = poisoned(job, strategy, world, state, step) if [*world.mesh.sizes] == ["replicate"] else []
    of_each = world.gather([place in places for place in range(job.config.global_batch)])
    return GradientError(job, step, [[*compress(count(), own)] for own in of_each])


def poisoned(job: Job, strategy: Strategy, world: World, state: State, step: int) -> list[int]:
    """Return this machine's samples with NaN or infinite gradients, as positions in the global batch."""
    config, size = replace(job.config, data_processes=0), world.mesh.data_size
    places = []
    for rank in world.data_ranks:
        batch = next(train_batches(Dataset(job.shards, "train"), config, start=step, rank=rank, world_size=size))
        parts = micro_batches(on_host(batch), len(batch.inputs))
        places += [rank + i * size for i, part in enumerate(parts) if not is_finite(job, strategy, world, state, part)]
    return places


def is_finite(job: Job, strategy: Strategy, world: World, state: State, part: Batch) -> bool:
    _, gradients = Strategy().forward_backward(job.config, state.net, part, world)
    return bool(tf.math.is_finite(tf.linalg.global_norm(gradients)))

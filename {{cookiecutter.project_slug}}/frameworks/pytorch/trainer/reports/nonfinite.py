"""The error of a gradient that is no number: which step, whose, and of which samples.

The step is taken again, sample by sample, to find out.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace

import torch

from trainer.cluster import devices
from trainer.cluster.world import World
from trainer.config import Job
from trainer.data import Batch
from trainer.parallel.strategy import Strategy
from trainer.samples.batches import micro_batches, order, train_batches
from trainer.samples.shards import Dataset
from trainer.step.state import State, step_seed
from trainer.vertex.errors import TrainerError

SHOWN = 50  # samples; a global batch may have thousands
CURE = (
    "look at these samples and at the operations of trainer/model.py, lower --learning-rate, or leave out a few such"
    " steps with --skip-nonfinite"
)


class GradientError(TrainerError):
    """The error of a run that ends at a step, an index.

    Args:
        places: in the global batch, by process, of the samples whose own gradients are no numbers; all empty where
            nobody could find that out.
    """

    def __init__(self, job: Job, step: int, places: Sequence[Sequence[int]]) -> None:
        size, numbers = job.config.global_batch, order(len(Dataset(job.shards, "train")), job.config)

        def samples(places: Iterable[int]) -> str:
            named = [str(numbers[step * size + place]) for place in places]
            rest = f" and {len(named) - SHOWN} more" if len(named) > SHOWN else ""
            return f"samples {', '.join(named[:SHOWN])}{rest}"

        guilty = [f"{job.cluster.process(i, len(places))} ({samples(own)})" for i, own in enumerate(places) if own]
        whose = f"that of {', '.join(guilty)}" if guilty else f"it has {samples(range(size))}"
        super().__init__(f"the gradient of step {step + 1} is no number: {whose}; {CURE}")


def error(job: Job, strategy: Strategy, world: World, state: State) -> GradientError:
    """Return the error of a run whose state has stayed as it was before the step. Every process must call it.

    Where processes hold parts of the model, nobody can take the step alone: the error names all samples.
    """
    step = state.step - (int(state.skipped) - job.config.skip_nonfinite)
    places = poisoned(job, strategy, world, state, step) if world.dimensions == ("replicate",) else []
    return GradientError(job, step, world.gather(places))


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
    torch.manual_seed(step_seed(job.config, state.step, world.data_rank))
    Strategy().forward_backward(job.config, net, part, world)
    return all(bool(p.grad.isfinite().all()) for p in net.parameters() if p.grad is not None)

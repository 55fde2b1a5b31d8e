"""Reports the step, the processes, and the samples that caused a NaN or infinite gradient.

To find the samples, this module repeats the step for each sample.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from trainer.cluster import devices
from trainer.cluster.world import World
from trainer.config import Job
from trainer.data import Batch
from trainer.parallel.strategy import Strategy
from trainer.samples.batches import micro_batches, order, train_batches
from trainer.samples.shards import Dataset
from trainer.step.state import State, seed_step
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
    """Return the error for a step with a NaN or infinite gradient. Every process must call this function.

    The failed step must not have changed the state, because this function repeats the step to find the samples. If each
    process holds only part of the model, no process can repeat the step alone. In this case, the error lists all
    samples in the batch.
    """
    step = state.step - (int(state.skipped) - job.config.skip_nonfinite)
    places = poisoned(job, strategy, world, state, step) if world.dimensions == ("replicate",) else []
    return GradientError(job, step, world.gather(places))


def poisoned(job: Job, strategy: Strategy, world: World, state: State, step: int) -> list[int]:
    """Return this process's samples with NaN or infinite gradients, as positions in the global batch."""
    config, rank, size = replace(job.config, data_processes=0), world.data_rank, world.data_size
    batch = next(train_batches(Dataset(job.shards, "train"), config, start=step, rank=rank, world_size=size))
    parts = micro_batches(devices.copy(batch, world.device), len(batch.inputs))
    state.step = step
    with strategy.sync(state.net, last=False):  # no averaging: each process repeats only its samples
        return [rank + i * size for i, part in enumerate(parts) if not is_finite(job, strategy, world, state, part)]


def is_finite(job: Job, strategy: Strategy, world: World, state: State, part: Batch) -> bool:
    net = strategy.bare(state.net)
    net.zero_grad()
    seed_step(job.config, state.step, world.data_rank)
    Strategy().forward_backward(job.config, net, part, world)
    return all(bool(p.grad.isfinite().all()) for p in net.parameters() if p.grad is not None)

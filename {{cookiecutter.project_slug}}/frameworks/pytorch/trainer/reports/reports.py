"""Reports of a training run: after each step, and of what was held out."""

import os
from collections.abc import Iterator

import torch

from trainer import optional
from trainer.cluster import devices, stuck
from trainer.cluster.world import World
from trainer.config import due, learning_rate
from trainer.data import Batch
from trainer.goodput import FIRST_STEP, REPORTS, START, TRAINING
from trainer.job import Job
from trainer.parallel.precision import precision
from trainer.parallel.strategy import Strategy
from trainer.reports import mfu, profile
from trainer.reports.reporter import Reporter
from trainer.reports.slowest import Slowest
from trainer.state import State
from trainer.totals import Totals, add, means
from trainer.vertex import reducers


class Reports(Reporter):
    """Reports of a run that begins with this state. Every process must make them, and report each step."""

    def __init__(self, job: Job, strategy: Strategy, world: World, state: State, example: Batch) -> None:
        self._job, self._strategy, self._world = job, strategy, world
        self._step, self._totals, self._reducers = state.step, Totals(), dict[str, float]()
        self._slowest = Slowest([job.cluster.process(rank, world.size) for rank in range(world.size)])
        flops = share_of_peak(job, world, example) if world.is_chief else 0.0
        super().__init__(job, example, is_chief=world.is_chief, start=state.step, device_count=world.size, flops=flops)
        # Last: what is traced from the first step on must not hold the start.
        self._trace = profile.Trace(job, state.step, world.is_chief)
        self._clock.lap(START)

    def traced(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        """Yield the batches of the loop, whose traced steps end with all that the loop does after them."""
        for batch in batches:
            yield batch
            self._trace.step(self._step)
            self._clock.lap(REPORTS)

    def step(self, state: State, totals: Totals) -> None:
        """Count a step that was taken, and report where a report, an evaluation or a checkpoint is due.

        Raises:
            TrainerError: the loss is no number any more, or more gradients were none than may be skipped.
            IdleReducersError: reducers are required, and are not used.
        """
        add(self._totals, totals)
        config, step = self._job.config, state.step
        stuck.took(step)
        is_first = FIRST_STEP not in self._clock.seconds
        if is_first:  # the gradients have been all-reduced
            self._reducers = self._settle_reducers()
        self._clock.lap(FIRST_STEP if is_first else TRAINING)
        if due(step, config, config.log_every, config.checkpoint_every, config.evaluate_every):
            if (skipped := int(state.skipped)) > config.skip_nonfinite:
                from trainer import replay  # only for a run that ends

                raise replay.error(self._job, self._strategy, self._world, state)
            values = {**means(self._totals, self._world), "learning_rate": learning_rate(config, step - 1)}
            values |= self._reducers | devices.peak_memory(self._world.device)
            values |= {"skipped_steps": skipped} if skipped else {}
            if timed := self._strategy.communication(state.net):
                timed |= self._slowest.values(self._world.gather(timed["computing_seconds"]))
            self.training(step, values | timed)
            self._totals = {}
        self._step = step
        self._clock.lap(REPORTS)

    def _settle_reducers(self) -> dict[str, float]:
        """Find out whether the reducers are used, once the device has nothing left to do."""
        world, count = self._world, len(self._job.cluster.servers)
        gpus = torch.cuda.device_count() if world.device.type == "cuda" else 0
        if gpus:
            torch.cuda.synchronize(world.device)

        def add_up(number: int) -> int:
            return int(world.sum(torch.tensor(float(number), device=world.device)))

        ranks = {"rank": world.rank, "ranks": world.size, "gpus": gpus}
        return reducers.settle(count, os.environ, add_up, **ranks, required=self._job.config.require_reducers)


def share_of_peak(job: Job, world: World, example: Batch) -> float:
    """Return the operations of a step as a share of the devices' peak in a second; 0 where the peak is not known."""
    config = job.config
    peak = mfu.peak_flops(devices.name(world.device), str(precision(config, world.device)).removeprefix("torch."))
    if not peak:
        return 0.0
    estimate = optional.load("describe.estimate", "train/mfu")  # takes a second, and few devices have a known peak
    return float(estimate.flops_per_sample(config, example) * config.global_batch / (world.size * peak))

"""Reports of a training run: after each step, and of what was held out."""

import os
from collections.abc import Iterator

import keras
import tensorflow as tf

from trainer import optional
from trainer.cluster import devices, stuck
from trainer.cluster.world import World
from trainer.config import due, learning_rate
from trainer.data import Batch
from trainer.goodput import FIRST_STEP, REPORTS, START, TRAINING
from trainer.job import Job
from trainer.parallel.calls import Steps
from trainer.parallel.strategy import Spread, Strategy
from trainer.reports import mfu, profile
from trainer.reports.reporter import Reporter
from trainer.reports.slowest import Slowest
from trainer.state import State
from trainer.totals import Totals, means
from trainer.vertex import reducers


class Reports(Reporter):
    """Reports of a run that begins with this state. Every machine must make them, and report each step."""

    def __init__(
        self, job: Job, strategy: Strategy, world: World, state: State, spread: Spread, example: Batch
    ) -> None:
        self._job, self._strategy, self._world, self._spread = job, strategy, world, spread
        self._step, self._totals, self._reducers = state.step, 0.0, dict[str, float]()
        self._slowest = Slowest([node.name for node in job.cluster.nodes])
        # The GPUs of parameter servers' workers are not seen here.
        flops = share_of_peak(job, world, example) if world.is_chief and strategy.computes else 0.0
        count = world.mesh.size
        super().__init__(job, example, is_chief=world.is_chief, start=state.step, device_count=count, flops=flops)
        # Last: what is traced from the first step on must not hold the start.
        self._trace = profile.Trace(job, state.step, world.is_chief)
        self._clock.lap(START)

    def traced(self, batches: Iterator[Steps]) -> Iterator[Steps]:
        """Yield the batches of the loop, whose traced steps end with all that the loop does after them."""
        for batch in batches:
            yield batch
            self._trace.step(self._step)
            self._clock.lap(REPORTS)

    def step(self, state: State, totals: Totals) -> None:
        """Count the steps that were taken, and report where a report, an evaluation or a checkpoint is due.

        Raises:
            TrainerError: the loss is no number any more, or more gradients were none than may be skipped.
            IdleReducersError: reducers are required, and are not used.
        """
        self._totals += totals
        config, step = self._job.config, state.step
        stuck.took(step)
        is_first = FIRST_STEP not in self._clock.seconds
        if is_first:  # the gradients have been all-reduced
            self._reducers = self._settle_reducers()
        self._clock.lap(FIRST_STEP if is_first else TRAINING)
        if due(step, config, config.log_every, config.checkpoint_every, config.evaluate_every):
            if (skipped := int(state.skipped.read_value())) > config.skip_nonfinite:
                from trainer import replay  # only for a run that ends

                raise replay.error(self._job, self._strategy, self._world, state)
            values = {**means(self._totals, self._spread.loop.names), "learning_rate": learning_rate(config, step - 1)}
            values |= self._reducers | (devices.peak_memory() if self._strategy.computes else {})
            values |= {"skipped_steps": skipped} if skipped else {}
            if timed := self._strategy.communication(self._spread):
                of_each = self._world.gather([round(timed["computing_seconds"] * 1e9)])
                timed |= self._slowest.values([nanoseconds for (nanoseconds,) in of_each])
            self.training(step, values | timed)
            self._totals = 0.0
        self._step = step
        self._clock.lap(REPORTS)

    def _settle_reducers(self) -> dict[str, float]:
        """Find out whether the reducers are used; parameter servers are none."""
        world, count = self._world, len(self._job.cluster.servers) if self._strategy.computes else 0
        here = {"rank": world.rank, "ranks": world.mesh.data_size, "gpus": len(tf.config.list_physical_devices("GPU"))}
        return reducers.settle(count, os.environ, world.sum, **here, required=self._job.config.require_reducers)


def share_of_peak(job: Job, world: World, example: Batch) -> float:
    """Return the operations of a step as a share of the devices' peak in a second; 0 where the peak is not known."""
    config = job.config
    peak = mfu.peak_flops(devices.name(), keras.config.dtype_policy().compute_dtype)
    if not peak:
        return 0.0
    estimate = optional.load("describe.estimate", "train/mfu")  # few devices have a known peak
    operations = estimate.flops_per_sample(config, example) * config.global_batch
    return float(operations / (world.mesh.size * peak))

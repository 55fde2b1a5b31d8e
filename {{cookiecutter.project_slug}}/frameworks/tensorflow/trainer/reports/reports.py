"""Reports of a training run: after each step, and of what was held out."""

from collections.abc import Iterator

import keras

from trainer import optional
from trainer.checkpoints.saver import State
from trainer.config import due, learning_rate
from trainer.data import Batch
from trainer.goodput import FIRST_STEP, REPORTS, TRAINING
from trainer.job import Job
from trainer.parallel.calls import Replicas, Steps
from trainer.reports import mfu, profile
from trainer.reports.reporter import Reporter
from trainer.shards import Dataset
from trainer.totals import Totals, means


class Reports(Reporter):
    """Reports of a run that begins with this state. Every machine must make them, and report each step."""

    def __init__(self, job: Job, replicas: Replicas, state: State) -> None:
        self._job, self._replicas = job, replicas
        self._step, self._totals, self._reducers = state.step, 0.0, dict[str, float]()
        example = Dataset(job.shards, "heldout").batch([0], job.config)
        flops = share_of_peak(job, replicas, example) if replicas.is_chief else 0.0
        devices = replicas.device_count
        super().__init__(job, example, is_chief=replicas.is_chief, start=state.step, device_count=devices, flops=flops)
        self._trace = profile.Trace(job, state.step, replicas.is_chief)

    def traced(self, batches: Iterator[Steps]) -> Iterator[Steps]:
        """Yield the batches of the loop, whose traced steps end with all that the loop does after them."""
        for batch in batches:
            yield batch
            self._trace.step(self._step)
            self._clock.lap(REPORTS)

    def step(self, state: State, totals: Totals) -> None:
        """Count the steps that were taken, and report where a report, an evaluation or a checkpoint is due.

        Raises:
            TrainerError: the loss is no number any more.
            IdleReducersError: reducers are required, and are not used.
        """
        self._totals += totals
        config, step = self._job.config, state.step
        is_first = FIRST_STEP not in self._clock.seconds
        if is_first:  # the gradients have been all-reduced
            self._reducers = self._replicas.settle_reducers()
        self._clock.lap(FIRST_STEP if is_first else TRAINING)
        if due(step, config, config.log_every, config.checkpoint_every, config.evaluate_every):
            values = {**means(self._totals, self._replicas.names), "learning_rate": learning_rate(config, step - 1)}
            self.training(step, values | self._reducers | self._replicas.observed)
            self._totals = 0.0
        self._step = step
        self._clock.lap(REPORTS)


def share_of_peak(job: Job, replicas: Replicas, example: Batch) -> float:
    """Return the operations of a step as a share of the devices' peak in a second; 0 where the peak is not known."""
    config = job.config
    peak = mfu.peak_flops(replicas.device_name, keras.config.dtype_policy().compute_dtype)
    if not peak:
        return 0.0
    estimate = optional.load("describe.estimate", "train/mfu")  # few devices have a known peak
    operations = estimate.flops_per_sample(config, example) * config.global_batch
    return float(operations / (replicas.device_count * peak))

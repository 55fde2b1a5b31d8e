"""Reports of a run: measured values with speeds, to every sink."""

import math

from trainer.data import Batch
from trainer.goodput import DATA, EVALUATION, EXPORT, REPORTS, TRAINING
from trainer.job import Job
from trainer.reports.sinks import HELDOUT, PER_DEVICE, PER_SECOND, TRAIN, Values, describe, last_reported, sinks
from trainer.shards import per_step
from trainer.vertex.errors import TrainerError
from trainer.vertex.log import say, warn


def conclude(job: Job, final: Values) -> None:
    """Say what the run has reached, where its model is, and where its time went, when the export has ended."""
    job.clock.lap(EXPORT)
    say(f"{describe(final)}; model in {job.storage.model}", **final)
    say(str(job.clock), goodput=job.clock.goodput, seconds=dict(job.clock.seconds))


class Reporter:
    """Reports of one run, from the end of its start. Every process reports, and only the chief's has sinks.

    Args:
        example: a batch of one sample.
        start: steps that were finished before this run, as after a resume.
        device_count: devices that share a step.
        flops: operations of a step as a share of the operations that the devices are built for in a second; 0 where
            unknown.
    """

    def __init__(
        self, job: Job, example: Batch, *, is_chief: bool, start: int, device_count: int, flops: float = 0.0
    ) -> None:
        config = job.config
        self._clock, self._device_count, self._flops = job.clock, device_count, flops
        self._per_step, self._reported = per_step(config, example), start
        self._last_start = last_reported(job.storage.logs) if is_chief else 0  # before there are curves of this start
        self._sinks = sinks(job.storage.logs, config.steps, job.storage.trial) if is_chief else ()
        self._clock.repeats = start < self._last_start
        if start and (lost := max(self._last_start - start, 0)):
            warn(f"resumed at step {start}; {lost} {'step after it is' if lost == 1 else 'steps after it are'} lost")
        self._stepping, self._waiting = self._clock.stepping, self._clock.seconds.get(DATA, 0.0)

    def training(self, step: int, values: Values) -> None:
        """Report training values since the last report; `step` counts finished steps.

        Raises:
            TrainerError: the loss is no number any more, or infinite. In all processes, which are told the same values.
        """
        clock = self._clock
        clock.lap(TRAINING)  # a GPU has worked until the values were there
        steps = step - self._reported
        seconds = (clock.stepping - self._stepping) / steps
        speed = {f"{TRAIN}{name}{PER_SECOND}": count / seconds for name, count in self._per_step.items()}
        speed |= {f"{TRAIN}step_seconds": seconds, PER_DEVICE: self._per_step["samples"] / seconds / self._device_count}
        if DATA in clock.seconds:  # else nobody knows how long the device has waited
            speed[f"{TRAIN}data_seconds"] = (clock.seconds[DATA] - self._waiting) / steps
        speed |= {f"{TRAIN}mfu": self._flops / seconds} if self._flops else {}
        self._write(step, {f"{TRAIN}{name}": value for name, value in values.items()} | speed)
        if not math.isfinite(values.get("loss", 0.0)):
            raise TrainerError(
                f"the loss is no number any more, since a step after {self._reported}; lower --learning-rate or --clip,"
                " or look for a sample or an operation that gives none"
            )
        self._reported, self._stepping, self._waiting = step, clock.stepping, clock.seconds.get(DATA, 0.0)
        clock.lap(REPORTS)
        clock.repeats = step < self._last_start

    def heldout(self, step: int, values: Values) -> None:
        """Report the evaluation that has just ended."""
        self._clock.lap(EVALUATION)
        self._write(step, {f"{HELDOUT}{name}": value for name, value in values.items()})
        self._clock.lap(REPORTS)

    def _write(self, step: int, values: Values) -> None:
        for write in self._sinks:
            write(step, values)

"""Reports the metrics of training steps and of evaluations on held-out samples."""

import math
import os
from collections.abc import Iterator

import keras
import tensorflow as tf

from trainer.cluster import devices, stuck
from trainer.cluster.world import World
from trainer.config import Job, due, learning_rate
from trainer.data import Batch
from trainer.parallel.strategy import Spread, Strategy
from trainer.reports import nonfinite, profile
from trainer.reports.sinks import HELDOUT, PER_DEVICE, PER_SECOND, TRAIN, Values, describe, last_reported, sinks
from trainer.reports.speed import (
    DATA,
    EXPORT,
    FIRST_STEP,
    REPORTS,
    TRAINING,
    Clock,
    Slowest,
    peak_flops,
)
from trainer.samples.batches import per_step
from trainer.step.state import State
from trainer.step.totals import Totals, means
from trainer.vertex import reducers
from trainer.vertex.errors import TrainerError
from trainer.vertex.log import say, warn


def conclude(job: Job, clock: Clock, final: Values) -> None:
    """Log the final metrics, the model's folder, and a summary of how the run spent its time.

    Call this function after the model is exported.
    """
    clock.begin(EXPORT)  # counts the time of the export until now
    say(f"{describe(final)}; model in {job.storage.model}", **final)
    say(str(clock), goodput=clock.goodput, seconds=dict(clock.seconds))


class Reporter:
    """A reporter for the metrics of one run.

    Every process calls the reporter's methods, but only the chief writes reports.

    Args:
        example: a batch of one sample.
        start: the number of steps that earlier runs finished.
        device_count: the number of devices that run each step together.
        flops: a step's FLOPs divided by the peak FLOPS of all devices. `flops` is 0 if the peak FLOPS is unknown.
    """

    def __init__(
        self,
        job: Job,
        clock: Clock,
        example: Batch,
        *,
        is_chief: bool,
        start: int,
        device_count: int,
        flops: float = 0.0,
    ) -> None:
        config = job.config
        self._clock, self._device_count, self._flops = clock, device_count, flops
        self._per_step, self._reported = per_step(config, example), start
        self._last_start = last_reported(job.storage.logs) if is_chief else 0  # read before this run writes curves
        self._sinks = sinks(job.storage.logs, config.steps, job.storage.trial) if is_chief else ()
        self._clock.repeats = start < self._last_start
        if start and (lost := max(self._last_start - start, 0)):
            warn(f"resumed at step {start}, so {lost} finished {'step' if lost == 1 else 'steps'} must be repeated")
        self._time_from(start)

    def training(self, step: int, values: Values) -> None:
        """Report the training metrics since the last report. `step` is the number of finished steps.

        Raises:
            TrainerError: if the loss is NaN or infinite. All processes raise this error at the same step.
        """
        with self._clock.phase(REPORTS):  # the values are computed, so this phase doesn't include a GPU's work
            reported = {f"{TRAIN}{name}": value for name, value in values.items()}
            self._write(step, reported | self._speed(step - self._timed))
        if not math.isfinite(values.get("loss", 0.0)):
            raise TrainerError(
                f"the loss became NaN or infinite after step {self._reported}; lower --learning-rate or --clip, or find"
                " the sample or the operation that causes this loss"
            )
        self._reported = step
        self._time_from(step)

    def took(self, step: int) -> None:
        """Note whether an earlier start had already taken this step."""
        self._clock.repeats = step <= self._last_start

    def heldout(self, step: int, values: Values) -> None:
        """Report the metrics of an evaluation."""
        with self._clock.phase(REPORTS):
            self._write(step, {f"{HELDOUT}{name}": value for name, value in values.items()})

    def _time_from(self, step: int) -> None:
        """Let the next report contain the speed of the steps after this one."""
        self._timed, self._stepping, self._waiting = step, self._clock.stepping, self._clock.seconds.get(DATA, 0.0)

    def _speed(self, steps: int) -> dict[str, float]:
        """Return the training speed over the last `steps` steps."""
        seconds = (self._clock.stepping - self._stepping) / steps
        speed = {f"{TRAIN}{name}{PER_SECOND}": count / seconds for name, count in self._per_step.items()}
        speed |= {f"{TRAIN}step_seconds": seconds, PER_DEVICE: self._per_step["samples"] / seconds / self._device_count}
        if DATA in self._clock.seconds:  # otherwise the waiting time of the device is unknown
            speed[f"{TRAIN}data_seconds"] = (self._clock.seconds[DATA] - self._waiting) / steps
        return speed | ({f"{TRAIN}mfu": self._flops / seconds} if self._flops else {})

    def _write(self, step: int, values: Values) -> None:
        for write in self._sinks:
            write(step, values)


class Reports(Reporter):
    """The reports of a run that starts from `state`. Every machine must create a Reports object."""

    def __init__(
        self, job: Job, clock: Clock, strategy: Strategy, world: World, state: State, spread: Spread, example: Batch
    ) -> None:
        self._job, self._strategy, self._world, self._spread = job, strategy, world, spread
        self._step, self._totals, self._reducers = state.step, 0.0, dict[str, float]()
        self._slowest = Slowest([node.name for node in job.cluster.nodes])
        # The chief of parameter servers can't detect the workers' GPUs.
        flops = share_of_peak(job, world, example) if world.is_chief and strategy.computes else 0.0
        count = world.mesh.size
        super().__init__(
            job, clock, example, is_chief=world.is_chief, start=state.step, device_count=count, flops=flops
        )
        # Created last, so that a trace of the first step doesn't include the start.
        self._trace = profile.Trace(job, state.step, world.is_chief)
        self._clock.begin(FIRST_STEP)

    def traced(self, batches: Iterator[tuple[Batch, ...]]) -> Iterator[tuple[Batch, ...]]:
        """Yield the batches for the training loop.

        The trace of a step includes all work that the training loop does before the next step.
        """
        # A GPU may work while Python waits for a batch, but TensorFlow doesn't report when the GPU is idle.
        idle_timer = None if tf.config.list_physical_devices("GPU") else (lambda: lambda: math.inf)
        for batch in self._clock.timed(batches, idle_timer):
            yield batch
            with self._clock.phase(REPORTS):
                self._trace.step(self._step)

    def step(self, state: State, totals: Totals) -> None:
        """Count a finished step, and write a report if a report, an evaluation, or a checkpoint is due.

        Raises:
            TrainerError: if the loss is NaN or infinite, or if more steps had NaN or infinite gradients than
                --skip-nonfinite allows.
            IdleReducersError: if reducers are required but not used.
        """
        self._totals += totals
        config, step = self._job.config, state.step
        stuck.took(step)
        if first := self._clock.current == FIRST_STEP:  # the gradients have been all-reduced
            self._reducers = self._settle_reducers()
            self._clock.begin(TRAINING)
        self.took(step)
        if due(step, config, config.log_every, config.checkpoint_every, config.evaluate_every):
            if (skipped := int(state.skipped.read_value())) > config.skip_nonfinite:
                raise nonfinite.error(self._job, self._strategy, self._world, state)
            values = {**means(self._totals, self._spread.loop.names), "learning_rate": learning_rate(config, step - 1)}
            values |= self._reducers | (devices.peak_memory() if self._strategy.computes else {})
            values |= {"skipped_steps": skipped} if skipped else {}
            if timed := self._strategy.communication(self._spread):
                of_each = self._world.gather([round(timed["computing_seconds"] * 1e9)])
                timed |= self._slowest.values([nanoseconds for (nanoseconds,) in of_each])
            self.training(step, values | timed)
            self._totals = 0.0
        elif first:
            self._time_from(step)  # the first step takes longer, because functions are compiled
        self._step = step

    def _settle_reducers(self) -> dict[str, float]:
        """Check whether NCCL uses the reducers. Parameter servers don't count as reducers."""
        world, count = self._world, len(self._job.cluster.servers) if self._strategy.computes else 0
        here = {"rank": world.rank, "ranks": world.mesh.data_size, "gpus": len(tf.config.list_physical_devices("GPU"))}
        return reducers.settle(count, os.environ, world.sum, **here, required=self._job.config.require_reducers)


def share_of_peak(job: Job, world: World, example: Batch) -> float:
    """Return a step's FLOPs divided by the peak FLOPS of all devices. If the peak FLOPS is unknown, return 0."""
    config = job.config
    peak = peak_flops(devices.name(), keras.config.dtype_policy().compute_dtype)
    if not peak:
        return 0.0
    from trainer.describe import estimate  # imported late, because few devices have a known peak

    operations = estimate.flops_per_sample(config, example) * config.global_batch
    return float(operations / (world.mesh.size * peak))

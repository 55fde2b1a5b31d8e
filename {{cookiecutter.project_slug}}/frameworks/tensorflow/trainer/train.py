"""The run of one machine, readable top to bottom. What happens in a step stands in `train_step`, and nowhere else."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

from trainer import checkpoint, commit_marker, export, model, per_sample, placement, profiling, strategy, telemetry
from trainer.calls import Replicas, Steps, Totals, calls, counted, tensors, turn, turns
from trainer.checkpoint import State
from trainer.cluster import Cluster
from trainer.config import Config
from trainer.data import Batch
from trainer.goodput import (
    CHECKPOINTS,
    DATA,
    EVALUATION,
    EXPORT,
    FIRST_STEP,
    LAST_CHECKPOINT,
    REPORTS,
    TRAINING,
    Stopwatch,
)
from trainer.shards import Dataset, heldout_batches, micro_batches, per_step
from trainer.storage import Storage
from trainer.strategy import World
from trainer.telemetry import Telemetry
from trainer.utilization import peak_flops

SUM = tf.distribute.ReduceOp.SUM


def run(config: Config, cluster: Cluster, storage: Storage, shards: Path, watch: Stopwatch) -> None:
    """Join the others, train, export."""
    world = strategy.build(config, cluster)
    if world.is_chief:
        telemetry.say(f"training on {world}, {config.strategy}: {world.mesh}")
    dataset, heldout = Dataset(shards, "train"), Dataset(shards, "heldout")
    example = heldout.batch([0], config)
    state = start(config, example, world)
    checkpoint.restore(state, storage.checkpoints, world)
    commit_marker.require_within(config.steps, state.step)
    mirrored = Mirrored(config, state, example, world)
    final = train(config, storage, state, dataset, heldout, mirrored, watch)
    if world.is_chief:
        export.finish(config, storage, state, heldout, final)
        watch.lap(EXPORT)
        telemetry.say_goodput(watch)
    # A chief that leaves first looks like a failure to the others.
    world.wait()


def start(config: Config, example: Batch, world: World) -> State:
    """The state before the first step: the same on every machine."""
    strategy.require_keras()
    keras.utils.set_random_seed(config.seed)
    # A model without model parallelism need not know of devices.
    devices = (world.layer_devices,) if world.is_model_parallel else ()
    with world.scope():
        net = model.build(config, example, *devices)
        kind = placement.PlacedAdamW if world.is_model_parallel else strategy.AdamW
        return State(net, new_optimizer(config, net.trainable_variables, kind))


def new_optimizer(
    config: Config, variables: list[Any], kind: type[keras.optimizers.AdamW] = strategy.AdamW
) -> keras.optimizers.AdamW:
    """AdamW, which leaves biases and the like undecayed."""
    optimizer = kind(config.learning_rate, weight_decay=config.weight_decay, epsilon=1e-8)
    optimizer.exclude_from_weight_decay([v for v in variables if len(v.shape) <= 1])
    optimizer.build(variables)
    return optimizer


def train(
    config: Config,
    storage: Storage,
    state: State,
    dataset: Dataset,
    heldout: Dataset,
    replicas: Replicas,
    watch: Stopwatch,
) -> dict[str, float]:
    """Train to the last step; returns the held-out loss and metrics."""
    with reporting(config, storage, state.step, heldout, replicas, watch) as reports:
        with (
            saver(config, storage, heldout, replicas) as checkpoints,
            profiling.trace(config.profile if replicas.is_chief else None, storage.logs, state.step) as traced,
        ):
            totals, use, first = 0.0, dict[str, float](), state.step
            for steps in watched(calls(config, dataset, state.step, replicas.ranks, replicas.size), watch):
                totals += replicas.take(steps)
                if state.step == first:  # the gradients have been all-reduced
                    use = replicas.settle_reducers()
                watch.lap(FIRST_STEP if state.step == first else TRAINING)
                state.step = steps.end
                # A report comes first: a loss that is no number must not become a checkpoint.
                if due(state.step, config, config.log_every, config.checkpoint_every, config.evaluate_every):
                    rate = {"learning_rate": steps.rates[-1]}
                    reports.report(state.step, means(totals, replicas.names) | rate | use | replicas.observed)
                    totals = 0.0
                if due(state.step, config, config.checkpoint_every):
                    checkpoints.save(state)
                    watch.lap(CHECKPOINTS)
                if due(state.step, config, config.evaluate_every) and state.step < config.steps:
                    reports.evaluation(state.step, means(replicas.evaluate(heldout), replicas.names))
                checkpoints.check()
                traced(state.step)
                watch.lap(REPORTS)
            final = means(replicas.evaluate(heldout), replicas.names)
            watch.lap(EVALUATION)
        watch.lap(LAST_CHECKPOINT)
        reports.evaluation(state.step, final)
    return final


def saver(config: Config, storage: Storage, heldout: Dataset, replicas: Replicas) -> checkpoint.Saver:
    """What writes the checkpoints; random numbers are left as `start` has left them."""
    copy = None
    if replicas.is_chief:
        with tf.device("CPU:0"):
            copy = start(config, heldout.batch([0], config), World(tf.distribute.get_strategy(), rank=0, size=1))
    return checkpoint.Saver(storage.checkpoints, config.keep, copy, replicas.wait)


def reporting(
    config: Config, storage: Storage, start: int, heldout: Dataset, replicas: Replicas, watch: Stopwatch
) -> Telemetry:
    """The reports of the steps after `start`; only the chief's are written."""
    count = replicas.device_count
    of_run = partial(Telemetry, start=start, per_step=per_step(config), device_count=count, watch=watch)
    if not replicas.is_chief:
        return of_run(())
    flops, computes_in = 0.0, keras.config.dtype_policy().compute_dtype
    if peak := peak_flops(replicas.device_name, computes_in):
        from trainer import estimate  # few devices have a known peak

        sample = heldout.batch([0], config)
        flops = estimate.flops_per_sample(config, sample) * config.global_batch / (count * peak)
    furthest = telemetry.furthest(storage.logs)  # before there are curves of this start
    sinks = telemetry.sinks(storage.logs, config.steps, start, storage.trial)
    return of_run(sinks, furthest=furthest, flops=flops)


def watched(all_steps: Iterator[Steps], watch: Stopwatch) -> Iterator[Steps]:
    """The steps; the watch is told how long their parts were waited for."""
    # A GPU may work meanwhile, and TensorFlow does not tell.
    part = TRAINING if tf.config.list_physical_devices("GPU") else DATA
    for steps in all_steps:
        watch.lap(part)
        yield steps


def due(step: int, config: Config, *regular: int) -> bool:
    """Whether this is the last step, or one of those that come every so many steps."""
    return step == config.steps or any(step % every == 0 for every in regular)


def train_step(config: Config, state: State, batch: Batch) -> tuple[Totals, tf.Tensor]:
    """One optimizer step of a device on its part of the global batch.

    Returns the totals of all devices, and for how many seconds this one has only communicated.
    """
    variables = state.model.trainable_variables
    totals, sums = 0.0, [tf.zeros(variable.shape) for variable in variables]
    for part in micro_batches(batch, config.micro_batches):
        with tf.GradientTape() as tape:
            output = state.model(part.inputs, training=True)
            losses = model.losses(output, part)
            # Every sample counts the same, although parts may differ by one: no mean over this part.
            loss = tf.reduce_sum(losses) / config.global_batch
        if config.model_parallel > 1:
            sums = placement.add_gradients(sums, loss, variables)
        else:
            sums = [total + gradient for total, gradient in zip(sums, tape.gradient(loss, variables), strict=True)]
        totals += measure(output, part, losses)
    computed, context = clock(sums), tf.distribute.get_replica_context()
    if context.num_replicas_in_sync > 1:
        # One call, so that gradients and totals travel in the same packs.
        totals, *sums = context.all_reduce(SUM, [totals, *sums])
    communicating = clock(sums) - computed
    clipped, _ = tf.clip_by_global_norm(sums, config.clip)
    state.optimizer.apply(clipped, variables)
    return totals, communicating


def clock(values: list[tf.Tensor]) -> tf.Tensor:
    """The time at which all of these are there, in seconds; 0 with GPUs, which to ask would hold up."""
    if tf.config.list_physical_devices("GPU"):
        return tf.constant(0.0, tf.float64)
    with tf.control_dependencies(values):
        return tf.timestamp()


def measure(output: tf.Tensor, batch: Batch, losses: tf.Tensor, mask: tf.Tensor | float = 1.0) -> Totals:
    """Sums over the samples whose mask is 1."""
    of_each = (losses, *model.metrics(output, batch).values(), tf.ones_like(losses))
    return tf.stack([tf.reduce_sum(values * mask) for values in of_each])


def measured(net: keras.Model, example: Batch) -> tuple[str, ...]:
    """The names of what `measure` sums.

    Raises:
        TrainerError: losses or metrics are not one number per sample.
    """
    output = net(example.inputs, training=False)
    metrics = model.metrics(output, example)
    per_sample.require(output, model.losses(output, example), metrics, len(example.inputs))
    return ("loss", *metrics)


def means(totals: Totals, names: tuple[str, ...]) -> dict[str, float]:
    *sums, samples = totals.numpy().tolist()
    return {name: value / samples for name, value in zip(names, sums, strict=True)}


class Mirrored:
    """All devices of all machines, which take each step together."""

    def __init__(self, config: Config, state: State, example: Batch, world: World) -> None:
        self._config, self._state, self._world = config, state, world
        self.is_chief, self.names = world.is_chief, measured(state.model, example)
        self.ranks, self.size, self.device_name = world.device_ranks, world.device_count, world.device_name
        self.device_count = world.device_count * len(world.layer_devices)
        self._communicating = tf.constant(0.0)

    def take(self, steps: Steps) -> Totals:
        """Take these steps; returns their totals over the global batches."""
        parts = self._world.distribute([tensors(part) for part in steps.parts])
        totals, self._communicating = self._take(parts, *counted(steps.rates, self._config))
        return totals

    def settle_reducers(self) -> dict[str, float]:
        """What the reports tell of the reducers, if there are any. Every machine must call it."""
        return self._world.settle_reducers(required=self._config.require_reducers)

    def wait(self) -> None:
        """Return when every machine is here."""
        self._world.wait()

    @property
    def observed(self) -> dict[str, float]:
        """On GPUs the most memory in use, elsewhere the seconds for which the newest step has only communicated."""
        return self._world.memory or {"communication_seconds": float(self._communicating)}

    @tf.function  # type: ignore[untyped-decorator]
    def _take(self, parts: Batch, rates: tf.Tensor, count: tf.Tensor) -> tuple[Totals, tf.Tensor]:
        config, state, strategy = self._config, self._state, self._world.strategy
        totals, communicating = tf.zeros(len(self.names) + 1), tf.constant(0.0, tf.float64)
        for i in turns(config, count):
            state.optimizer.learning_rate.assign(rates[i])
            of_step = strategy.run(lambda part: train_step(config, state, turn(part, i)), args=(parts,))  # noqa: B023
            measured_there, communicating = (strategy.experimental_local_results(one)[0] for one in of_step)
            totals += measured_there
        return totals, communicating

    def evaluate(self, heldout: Dataset) -> Totals:
        """Score every held-out sample exactly once. Every machine must call it."""
        split = {"world_size": self.size, "micro_batches": self._config.micro_batches}
        share = [heldout_batches(heldout, self._config, rank=rank, **split) for rank in self.ranks]
        of_each = (self._world.distribute([tensors(one) for one in ones]) for ones in zip(*share, strict=True))
        return sum((self._score(*one) for one in of_each), start=0.0)

    @tf.function  # type: ignore[untyped-decorator]
    def _score(self, batch: Batch, mask: tf.Tensor) -> Totals:
        net, strategy = self._state.model, self._world.strategy
        return strategy.reduce(SUM, strategy.run(lambda *one: score(net, *one), args=(batch, mask)), axis=None)


def score(net: keras.Model, batch: Batch, mask: tf.Tensor) -> Totals:
    """What is measured of one batch, without training."""
    output = net(batch.inputs, training=False)
    return measure(output, batch, model.losses(output, batch), mask)

"""The run of one process, readable top to bottom."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice, pairwise
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import keras
import numpy as np
import tensorflow as tf

from trainer import checkpoint, export, model, placement, strategy, telemetry, writable
from trainer.checkpoint import State
from trainer.cluster import Cluster
from trainer.config import Config, learning_rate
from trainer.data import NO_LABEL, Batch, Dataset, heldout_batches, train_batches
from trainer.storage import Storage
from trainer.strategy import World
from trainer.telemetry import Telemetry

Totals: TypeAlias = tf.Tensor  # sums over samples of loss, correct answers and samples, shape (3,)
SUM = tf.distribute.ReduceOp.SUM
# What TensorFlow makes of a full disk, and of a folder that belongs to somebody else.
FILE_ERRORS = (tf.errors.ResourceExhaustedError, tf.errors.PermissionDeniedError, tf.errors.FailedPreconditionError)


def run(config: Config, cluster: Cluster, storage: Storage, shards: Path) -> None:
    """Join the others, train, export."""
    world = strategy.build(config, cluster)
    if world.is_chief:
        telemetry.say(f"training on {world}, {config.strategy}: {world.mesh}")
    heldout = Dataset(shards, "heldout")
    state = start(config, heldout[0].image.shape, world)
    checkpoint.restore(state, storage.checkpoints, world)
    steps = calls(config, Dataset(shards, "train"), state.step, world.device_ranks, world.device_count)
    take, evaluate = train_steps(config, state, world), evaluation(config, heldout, state.model, world)
    with reports(config, storage, state, world, world.device_count) as telling:
        accuracy = train(config, storage, state, world, telling, steps, take, evaluate)
    if world.is_chief:
        finish(config, storage, state, heldout, accuracy)
    # A chief that leaves first looks like a failure to the others.
    world.wait()


def finish(config: Config, storage: Storage, state: State, heldout: Dataset, accuracy: float) -> None:
    """Export the model without the strategy and in float32: what is served must not depend on how it was trained."""
    keras.config.set_dtype_policy("float32")
    plain = new_model(config, heldout[0].image.shape)
    plain.set_weights(state.model.get_weights())
    with writable.writing(storage.model):
        export.export(plain, heldout.batch(range(min(len(heldout), 32))).images, storage.model)
    telemetry.say(f"accuracy {accuracy:.4f}; model in {storage.model}", accuracy=accuracy)


def start(config: Config, image: tuple[int, int, int], world: World) -> State:
    """The state before the first step: the same on every machine."""
    keras.utils.set_random_seed(config.seed)
    with world.scope():
        net = new_model(config, image, world.layer_devices)
        kind = placement.PlacedAdamW if world.is_model_parallel else strategy.AdamW
        return State(net, new_optimizer(config, net.trainable_variables, kind))


def new_model(config: Config, image: tuple[int, int, int], devices: Sequence[str] = ("",)) -> keras.Model:
    placed = (devices,) if len(devices) > 1 else ()  # a model without model parallelism need not know of devices
    return model.build(config.size, image, config.patch, config.classes, *placed)


def new_optimizer(
    config: Config, variables: Sequence[Any], kind: type[keras.optimizers.AdamW] = strategy.AdamW
) -> keras.optimizers.AdamW:
    """AdamW, which leaves biases and the like undecayed."""
    optimizer = kind(config.learning_rate, weight_decay=config.weight_decay, epsilon=1e-8)
    optimizer.exclude_from_weight_decay([v for v in variables if len(v.shape) <= 1])
    optimizer.build(variables)
    return optimizer


def reports(config: Config, storage: Storage, state: State, world: World, device_count: int) -> Telemetry:
    """Where the run reports to; `device_count` are those that share a global batch."""
    sinks = telemetry.sinks(storage.logs, config.steps, state.step, storage.trial) if world.is_chief else ()
    return Telemetry(sinks, start=state.step, global_batch=config.global_batch, device_count=device_count)


def train(
    config: Config,
    storage: Storage,
    state: State,
    world: World,
    reports: Telemetry,
    calls: Iterator["Steps"],
    take: Callable[["Steps"], Totals],
    evaluate: Callable[[], dict[str, float]],
) -> float:
    """Train to the last step; returns the held-out accuracy."""
    totals = tf.zeros(3)
    for steps in calls:
        totals += take(steps)
        state.step = steps.end
        if due(config.log_every, state.step, config):
            reports.report(state.step, means(totals) | {"learning_rate": steps.rates[-1]})
            totals = tf.zeros(3)
        with reports.pause():
            if due(config.checkpoint_every, state.step, config):
                with writable.writing(storage.checkpoints, *FILE_ERRORS):
                    checkpoint.save(state, storage.checkpoints, config.keep, world)
            if due(config.evaluate_every, state.step, config) and state.step < config.steps:
                reports.evaluation(state.step, evaluate())
    final = evaluate()
    reports.evaluation(state.step, final)
    return final["accuracy"]


def due(every: int, step: int, config: Config) -> bool:
    return step % every == 0 or step == config.steps


def until_due(config: Config, step: int) -> int:
    """Steps from this one on that one call may take: it never passes a report, an evaluation or a checkpoint."""
    regular = (config.log_every, config.evaluate_every, config.checkpoint_every)
    return min(config.steps_per_call, config.steps - step, *(every - step % every for every in regular))


class Steps(NamedTuple):
    """What one call takes: consecutive steps, at most `--steps-per-call` of them."""

    parts: list[Batch]  # of each device: images (steps per call, samples, height, width, channels) and labels
    rates: list[float]  # learning rate of each step; behind the last one the parts are filled up with zeros
    end: int  # how many steps of the run are finished then


def calls(config: Config, dataset: Dataset, start: int, ranks: range, world_size: int) -> Iterator[Steps]:
    """All steps from `start` on, with the parts of each global batch for these of `world_size` devices.

    The next call's are read while the present one computes.
    """
    with ThreadPoolExecutor(1) as reader:
        steps = _calls(config, dataset, start, ranks, world_size)
        read = reader.submit(next, steps, None)
        while (now := read.result()) is not None:
            read = reader.submit(next, steps, None)
            yield now


def _calls(config: Config, dataset: Dataset, start: int, ranks: range, world_size: int) -> Iterator[Steps]:
    def part(rank: int) -> Iterator[Batch]:
        return train_batches(dataset, config, start=start, rank=rank, world_size=world_size)

    step, batches = start, zip(*map(part, ranks), strict=True)
    while step < config.steps:
        rates = [learning_rate(config, i) for i in range(step, step + until_due(config, step))]
        of_each_device = zip(*islice(batches, len(rates)), strict=True)
        step += len(rates)
        yield Steps([stack(taken, config.steps_per_call) for taken in of_each_device], rates, step)


def stack(batches: Sequence[Batch], count: int) -> Batch:
    """Batches of one shape as one, with a new first axis of length `count`; so a shorter call is no other function."""
    if count == 1:
        return Batch(batches[0].images[np.newaxis], batches[0].labels[np.newaxis])
    images, labels = (np.zeros((count, *first.shape), first.dtype) for first in batches[0])
    for i, batch in enumerate(batches):
        images[i], labels[i] = batch
    return Batch(images, labels)


def tensors(batch: Batch) -> tuple[tf.Tensor, tf.Tensor]:
    with tf.device("CPU:0"):  # else the parts of all devices would pass through the first GPU
        return tf.constant(batch.images), tf.constant(batch.labels)


def train_steps(config: Config, state: State, world: World) -> Callable[[Steps], Totals]:
    """A compiled function that takes steps and returns their totals over the global batches."""
    variables = state.model.trainable_variables

    def replica_step(images: tf.Tensor, labels: tf.Tensor) -> Totals:
        totals = tf.zeros(3)
        sums = [tf.zeros(variable.shape) for variable in variables]
        for part in micro_batches(images, labels, config.micro_batches):
            with tf.GradientTape() as tape:
                loss, counts = score(state.model(part[0], training=True), part[1])
                loss /= config.global_batch
            sums = [total + gradient for total, gradient in zip(sums, tape.gradient(loss, variables), strict=True)]
            totals += counts
        # One call, so that gradients and totals travel in the same packs.
        totals, *sums = tf.distribute.get_replica_context().all_reduce(SUM, [totals, *sums])
        clipped, _ = tf.clip_by_global_norm(sums, config.clip)
        state.optimizer.apply(clipped, variables)
        return totals

    @tf.function  # type: ignore[untyped-decorator]
    def take(images: Any, labels: Any, rates: tf.Tensor, count: tf.Tensor) -> Totals:
        totals = tf.zeros(3)
        for i in turns(config, count):
            state.optimizer.learning_rate.assign(rates[i])
            of_step = world.strategy.run(lambda x, y: replica_step(x[i], y[i]), args=(images, labels))  # noqa: B023
            totals += world.strategy.experimental_local_results(of_step)[0]
        return totals

    return lambda steps: take(*world.distribute([tensors(part) for part in steps.parts]), *counted(steps.rates, config))


def turns(config: Config, count: tf.Tensor) -> Any:
    """What a compiled function iterates over: a loop in the graph, or, where a call is one step, no loop at all."""
    return tf.range(count) if config.steps_per_call > 1 else range(1)


def counted(rates: list[float], config: Config) -> tuple[tf.Tensor, tf.Tensor]:
    """The learning rates, filled up with zeros to the steps of a whole call, and how many they are."""
    return tf.constant([*rates, *[0.0] * (config.steps_per_call - len(rates))]), tf.constant(len(rates))


def micro_batches(images: tf.Tensor, labels: tf.Tensor, count: int) -> list[tuple[tf.Tensor, tf.Tensor]]:
    """At most `count` consecutive, nearly equal parts of a batch, none of them empty."""
    samples = images.shape[0]
    count = min(count, samples)
    bounds = [samples * i // count for i in range(count + 1)]
    return [(images[a:b], labels[a:b]) for a, b in pairwise(bounds)]


def score(logits: tf.Tensor, labels: tf.Tensor) -> tuple[tf.Tensor, Totals]:
    """The summed loss, and the totals; samples labelled NO_LABEL count for nothing."""
    real = tf.cast(labels != NO_LABEL, tf.float32)
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(tf.maximum(labels, 0), logits)
    loss = tf.reduce_sum(losses * real)
    correct = tf.reduce_sum(tf.cast(tf.argmax(logits, axis=1) == labels, tf.float32))
    return loss, tf.stack([loss, correct, tf.reduce_sum(real)])


def evaluation(config: Config, heldout: Dataset, net: keras.Model, world: World) -> Callable[[], dict[str, float]]:
    """A function that scores every held-out sample exactly once. Every machine must call it."""

    @tf.function  # type: ignore[untyped-decorator]
    def add(batch: Any) -> Totals:
        per_device = world.strategy.run(lambda x, y: score(net(x, training=False), y)[1], args=batch)
        return world.strategy.reduce(SUM, per_device, axis=None)

    def part(rank: int) -> Iterator[Batch]:
        return heldout_batches(heldout, config, rank=rank, world_size=world.device_count)

    def evaluate() -> dict[str, float]:
        batches = zip(*map(part, world.device_ranks), strict=True)
        distributed = (world.distribute([tensors(one) for one in of_each_device]) for of_each_device in batches)
        return means(sum(map(add, distributed), start=tf.zeros(3)))

    return evaluate


def means(totals: Totals) -> dict[str, float]:
    loss, correct, samples = totals.numpy().tolist()
    return {"loss": loss / samples, "accuracy": correct / samples}

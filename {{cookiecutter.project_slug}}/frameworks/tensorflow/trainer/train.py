"""The run of one process, readable top to bottom."""

from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeAlias

import keras
import tensorflow as tf

from trainer import checkpoint, export, model, strategy, telemetry
from trainer.checkpoint import State
from trainer.cluster import Cluster
from trainer.config import Config, learning_rate
from trainer.data import NO_LABEL, Batch, Dataset, heldout_batches, train_batches
from trainer.storage import Storage
from trainer.strategy import World
from trainer.telemetry import Telemetry

Totals: TypeAlias = tf.Tensor  # sums over samples of loss, correct answers and samples, shape (3,)
SUM = tf.distribute.ReduceOp.SUM


def run(config: Config, cluster: Cluster, storage: Storage, shards: Path) -> None:
    """Join the others, train, export."""
    world = strategy.build(cluster, config.collective_timeout)
    if world.is_chief:
        telemetry.say(f"training on {world}")
    heldout = Dataset(shards, "heldout")
    state = start(config, heldout[0].image.shape, world)
    checkpoint.restore(state, storage.checkpoints, world)
    accuracy = train(config, storage, Dataset(shards, "train"), heldout, state, world)
    if world.is_chief:
        # Without the strategy and in float32: what is served must not depend on how it was trained.
        keras.config.set_dtype_policy("float32")
        plain = new_model(config, heldout[0].image.shape)
        plain.set_weights(state.model.get_weights())
        export.export(plain, heldout.batch(range(min(len(heldout), 32))).images, storage.model)
        telemetry.say(f"accuracy {accuracy:.4f}; model in {storage.model}", accuracy=accuracy)
    # A chief that leaves first looks like a failure to the others.
    world.wait()


def start(config: Config, image: tuple[int, int, int], world: World) -> State:
    """The state before the first step: the same on every machine."""
    keras.utils.set_random_seed(config.seed)
    with world.strategy.scope():
        net = new_model(config, image)
        return State(net, new_optimizer(config, net))


def new_model(config: Config, image: tuple[int, int, int]) -> keras.Model:
    return model.build(config.size, image, config.patch, config.classes)


def new_optimizer(config: Config, net: keras.Model) -> keras.optimizers.Optimizer:
    """AdamW, which leaves biases and the like undecayed."""
    optimizer = strategy.AdamW(config.learning_rate, weight_decay=config.weight_decay, epsilon=1e-8)
    optimizer.exclude_from_weight_decay([v for v in net.trainable_variables if len(v.shape) <= 1])
    optimizer.build(net.trainable_variables)
    return optimizer


def train(config: Config, storage: Storage, dataset: Dataset, heldout: Dataset, state: State, world: World) -> float:
    """Train to the last step; returns the held-out accuracy."""
    step, evaluate = train_step(config, state, world), evaluation(config, heldout, state.model, world)
    sinks = telemetry.sinks(storage.logs, config.steps, state.step, storage.trial) if world.is_chief else ()
    with Telemetry(
        sinks, start=state.step, global_batch=config.global_batch, device_count=world.device_count
    ) as reports:
        totals = tf.zeros(3)
        for batch in batches(config, dataset, state, world):
            totals += step(batch, learning_rate(config, state.step))
            state.step += 1
            if due(config.log_every, state, config):
                rate = {"learning_rate": learning_rate(config, state.step - 1)}
                reports.report(state.step, means(totals) | rate)
                totals = tf.zeros(3)
            with reports.pause():
                if due(config.checkpoint_every, state, config):
                    checkpoint.save(state, storage.checkpoints, config.keep, world)
                if due(config.evaluate_every, state, config) and state.step < config.steps:
                    reports.evaluation(state.step, evaluate())
        final = evaluate()
        reports.evaluation(state.step, final)
    return final["accuracy"]


def due(every: int, state: State, config: Config) -> bool:
    return state.step % every == 0 or state.step == config.steps


def batches(config: Config, dataset: Dataset, state: State, world: World) -> Iterator[Any]:
    """Each device's part of each global batch, as distributed values."""

    def part(rank: int) -> Iterator[Batch]:
        return train_batches(dataset, config, start=state.step, rank=rank, world_size=world.device_count)

    return distributed(part, world)


def distributed(part: Callable[[int], Iterator[Batch]], world: World) -> Iterator[Any]:
    """The batches that `part(device rank)` yields for this machine's devices, as distributed values."""
    for parts in zip(*map(part, world.device_ranks), strict=True):
        yield world.distribute([tensors(batch) for batch in parts])


def tensors(batch: Batch) -> tuple[tf.Tensor, tf.Tensor]:
    with tf.device("CPU:0"):  # else the parts of all devices would pass through the first GPU
        return tf.constant(batch.images), tf.constant(batch.labels)


def train_step(config: Config, state: State, world: World) -> Callable[[Any, float], Totals]:
    """A compiled function: (distributed batch, learning rate) -> totals over the global batch."""
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

    @tf.function
    def step(batch: Any, rate: tf.Tensor) -> Totals:
        state.optimizer.learning_rate.assign(rate)
        totals = world.strategy.run(replica_step, args=batch)
        return world.strategy.experimental_local_results(totals)[0]

    return lambda batch, rate: step(batch, tf.constant(rate))


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

    @tf.function
    def add(batch: Any) -> Totals:
        per_device = world.strategy.run(lambda x, y: score(net(x, training=False), y)[1], args=batch)
        return world.strategy.reduce(SUM, per_device, axis=None)

    def part(rank: int) -> Iterator[Batch]:
        return heldout_batches(heldout, config, rank=rank, world_size=world.device_count)

    def evaluate() -> dict[str, float]:
        return means(sum(map(add, distributed(part, world)), start=tf.zeros(3)))

    return evaluate


def means(totals: Totals) -> dict[str, float]:
    loss, correct, samples = totals.numpy().tolist()
    return {"loss": loss / samples, "accuracy": correct / samples}

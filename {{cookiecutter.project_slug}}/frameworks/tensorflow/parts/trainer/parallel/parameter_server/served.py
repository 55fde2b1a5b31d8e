"""Stores the model on parameter servers, and schedules work on the workers.

The code in this module runs on the chief.
"""

import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from trainer import model
from trainer.cluster.devices import on_host
from trainer.cluster.world import World
from trainer.config import Config, due, learning_rate
from trainer.data import Batch
from trainer.parallel.multi_worker_mirrored import Mirrored
from trainer.parallel.parameter_server.heartbeat import Heartbeats
from trainer.parallel.placed import PlacedAdamW
from trainer.parallel.strategy import Loop, Strategy
from trainer.samples.batches import Masked, micro_batches
from trainer.step.state import SEED, State
from trainer.step.totals import Totals, measure, score

AHEAD = 2  # parts that are scheduled for each worker: one in progress, one in transit
RETRY_SECONDS = 0.1
MOMENTS = ("_momentum", "_velocity")  # suffixes of Keras's names for the moments of AdamW


class ServedNet:
    """The model that the workers use, with its trainable variables on the parameter servers.

    Create this object in the scope of the parameter server strategy.
    """

    def __init__(self, net: keras.Model) -> None:
        self.weights = [tf.Variable(weight.numpy()) for weight in net.trainable_variables]
        self.trainable_variables = [piece for weight in self.weights for piece in pieces(weight)]
        self._net, self._fixed = net, [(one.name, one.numpy()) for one in net.non_trainable_variables]

    def fetch(self) -> list[tf.Tensor]:
        """Return the current weights on the servers."""
        return list(map(tf.convert_to_tensor, self.weights))

    def __call__(self, inputs: tf.Tensor, training: bool, weights: Sequence[tf.Tensor] = ()) -> tf.Tensor:
        """Return the model's output with the given weights. By default, use the servers' current weights."""
        # Workers don't process parts in a fixed order, so a resumed run can't repeat the random numbers of dropout.
        fixed = [tf.raw_ops.NonDeterministicInts(shape=[2]) if name == SEED else value for name, value in self._fixed]
        return self._net.stateless_call(weights or self.fetch(), fixed, inputs, training=training)[0]


def forward_backward(config: Config, net: ServedNet, batch: Batch) -> tuple[Totals, list[tf.Tensor]]:
    """Run the forward and backward passes for a worker's slice of the batch on all of the worker's GPUs.

    Both passes use the servers' current weights. Returns the sums of the loss and the metrics, along with the
    gradients.
    """
    weights, gpus = net.fetch(), worker_devices()
    totals, sums = 0.0, [tf.zeros_like(weight) for weight in weights]
    for i, part in enumerate(micro_batches(batch, config.micro_batches * len(gpus))):
        with tf.device(gpus[i % len(gpus)]), tf.GradientTape() as tape:
            tape.watch(weights)
            output = net(part.inputs, training=True, weights=weights)
            losses = model.losses(output, part)
            gradients = tape.gradient(tf.reduce_sum(losses) / batch.inputs.shape[0], weights)
        totals += measure(output, part, losses)
        sums = [total + gradient for total, gradient in zip(sums, gradients, strict=True)]
    sizes = [[piece.shape[0] for piece in pieces(weight)] for weight in net.weights]
    return totals, [part for total, each in zip(sums, sizes, strict=True) for part in tf.split(total, each)]


@dataclass(frozen=True, kw_only=True)
class ServedWorld(World):
    """The chief and its connections to other replicas. Only the chief runs the training loop."""

    servers: tf.distribute.ParameterServerStrategy
    heartbeats: Heartbeats

    @property
    def told(self) -> str:
        return self.heartbeats.told


class Team:
    """The workers, and the model and optimizer variables on the parameter servers.

    Before each checkpoint, the chief copies the variables to a regular training state. Therefore, checkpoints don't
    depend on the strategy, and a run with a different strategy can resume from them. The chief needs memory for two
    copies of the state, because the state changes while a checkpoint is being written.
    """

    communicating, seconds = None, 0.0  # unknown, because no worker waits for another

    def __init__(self, strategy: Strategy, loop: Loop, state: State, world: ServedWorld) -> None:
        self.loop, self._config, self._state, self._heartbeats = loop, loop.config, state, world.heartbeats
        self._workers, self._zeros = world.mesh.data_size, tf.zeros(len(loop.names) + 1)
        self._alone = Mirrored(strategy, loop, state, World())  # evaluates without workers after the last step
        self._coordinator = tf.distribute.coordinator.ClusterCoordinator(world.servers)
        self._results: deque[Any] = deque()
        with world.servers.scope():
            net = ServedNet(state.net)
            self._served = State(net, loop.new_optimizer(loop.config, net.trainable_variables, PlacedAdamW))
        state.skipped, state.fetch = self._served.skipped, self._pull  # counted by the workers
        self._push()

        @tf.function  # type: ignore[untyped-decorator]
        def take(part: Batch, rate: tf.Tensor) -> Totals:
            self._served.optimizer.learning_rate.assign(rate / self._workers)
            return loop.step(loop.config, strategy, self._served, part, world)[0]

        self._take, self._score = take, tf.function(lambda *one: score(net, *one))

    def take(self, parts: Sequence[Batch]) -> Totals:
        """Schedule the next step's per-worker batches.

        Returns the sums of the loss and the metrics over the batches that have finished since the previous call.

        If a report, an evaluation, or a checkpoint is due after the step, wait for all scheduled batches.
        """
        config, step = self._config, self._state.step
        rate = tf.constant(learning_rate(config, step))
        self._results.extend(self._coordinator.schedule(self._take, args=(on_host(part), rate)) for part in parts)
        is_due = due(step + 1, config, config.log_every, config.evaluate_every, config.checkpoint_every)
        return self._finished(0 if is_due else AHEAD * self._workers)

    def score(self, parts: Iterable[Sequence[Masked]]) -> Totals:
        """Return the sums of the loss and the metrics over all batches in `parts`.

        The workers compute these sums. After the last step, the chief alone computes the sums.
        """
        if self._state.step == self._config.steps:
            self._heartbeats.need_nobody()
            return self._alone.score([one] for part in parts for one in part)
        totals = self._zeros
        for part in parts:
            self._results.extend(self._coordinator.schedule(self._score, args=on_host(one)) for one in part)
            totals += self._finished(AHEAD * self._workers)
        return totals + self._finished(0)

    def _finished(self, left: int) -> Totals:
        """Wait until at most `left` batches are unfinished. Returns the totals of the finished batches."""
        totals = self._zeros
        while len(self._results) > left:
            with self._heartbeats.patience():
                totals += fetched(self._results.popleft(), self._coordinator)
        return totals

    def _push(self) -> None:
        """Copy the training state to the parameter servers."""
        for mine, theirs in self._pairs():
            ends = np.cumsum([piece.shape[0] for piece in theirs])
            for piece, value in zip(theirs, np.split(mine.numpy(), ends[:-1]), strict=True):
                piece.assign(value)
        self._served.optimizer.iterations.assign(self._state.optimizer.iterations.numpy() * self._workers)

    def _pull(self) -> None:
        """Wait for all scheduled batches, and then copy the parameter servers' variables to the training state."""
        self._finished(0)
        with self._heartbeats.patience():
            for mine, theirs in self._pairs():
                mine.assign(np.concatenate([piece.numpy() for piece in theirs]))
        self._state.optimizer.iterations.assign(self._state.step)

    def _pairs(self) -> Iterator[tuple[Any, list[Any]]]:
        """Yield each variable of the training state with its shards on the parameter servers."""
        weights, (ours, theirs) = self._served.net.weights, (self._state.optimizer, self._served.optimizer)
        yield from zip(self._state.net.trainable_variables, map(pieces, weights), strict=True)
        for name in MOMENTS:
            of_pieces = iter(moments(theirs, name))
            for mine, weight in zip(moments(ours, name), weights, strict=True):
                yield mine, [*islice(of_pieces, len(pieces(weight)))]


def fetched(result: Any, coordinator: Any) -> Any:
    """Return the result of a scheduled function.

    A result stays on its worker until the chief copies it. If the worker is lost before then, the coordinator has
    another worker recompute the result. `Heartbeats.patience` limits how long this function waits. Raises OpError if
    the coordinator can't recover.
    """
    while True:
        try:
            return result.fetch()
        except tf.errors.OpError:
            coordinator.done()  # raises errors from which it can't recover
            time.sleep(RETRY_SECONDS)


def pieces(weight: Any) -> list[Any]:
    """Return the shards into which a variable is split along its first axis. A small variable has only one shard."""
    return list(getattr(weight, "variables", [weight]))


def moments(optimizer: keras.optimizers.AdamW, name: str) -> list[keras.Variable]:
    """Return AdamW's moments whose paths end with `name`, in the order of the optimizer's variables."""
    return [variable for variable in optimizer.variables if variable.path.endswith(name)]


def worker_devices() -> list[str]:
    """Return the names of a worker's GPU devices. If there are no GPUs, return the CPU's device name.

    All workers have the same devices.
    """
    gpus = [gpu.name for gpu in tf.config.list_logical_devices("GPU") if "/job:worker/replica:0/task:0/" in gpu.name]
    return [f"GPU:{i}" for i in range(len(gpus))] or ["CPU:0"]

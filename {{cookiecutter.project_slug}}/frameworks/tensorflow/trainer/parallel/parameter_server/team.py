"""The workers as the chief sees them, and the model on the parameter servers."""

import time
from collections import deque
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from trainer import model, train
from trainer.checkpoints.saver import State
from trainer.config import Config, due
from trainer.data import Batch
from trainer.parallel.calls import Steps, counted, tensors, turn, turns
from trainer.parallel.multi_worker_mirrored import Mirrored
from trainer.parallel.optimizers import PlacedAdamW
from trainer.parallel.parameter_server.heartbeat import Heartbeats
from trainer.shards import Data, micro_batches
from trainer.totals import Totals, measure

AHEAD = 2  # parts for each worker that are scheduled at once: one at work, one on its way
RETRY_SECONDS = 0.1
MOMENTS = ("_momentum", "_velocity")  # how Keras ends the names of what AdamW keeps for each variable


class Team:
    """The workers, and the variables of model and optimizer on the parameter servers.

    The state that is saved is an ordinary one: the chief copies the variables into it. So a checkpoint does not tell
    which strategy wrote it, and each resumes those of the other; the chief's memory must hold it twice, as a
    checkpoint is written while the state changes again.

    Args:
        alone: the chief by itself, which evaluates at the end.
        size: the number of workers.
    """

    is_chief = True
    device_name = "of the workers"  # the chief sees no GPU of theirs

    def __init__(
        self,
        config: Config,
        state: State,
        alone: Mirrored,
        servers: tf.distribute.ParameterServerStrategy,
        size: int,
        heartbeats: Heartbeats,
    ) -> None:
        self.names, self.ranks, self.size = alone.names, range(size), size
        self._config, self._state, self._alone, self._heartbeats = config, state, alone, heartbeats
        self._coordinator = tf.distribute.coordinator.ClusterCoordinator(servers)
        self._results: deque[Any] = deque()
        self._devices = worker_devices()
        self.device_count = size * len(self._devices)
        with servers.scope():
            self._weights = [tf.Variable(weight.numpy()) for weight in state.net.trainable_variables]
            self._pieces = [piece for weight in self._weights for piece in pieces(weight)]
            self._optimizer = train.new_optimizer(config, self._pieces, PlacedAdamW)
        self._push()
        self._fixed = [variable.numpy() for variable in state.net.non_trainable_variables]
        self._take, self._score = self._functions()

    def __str__(self) -> str:
        """`3 workers of 8 GPUs`"""
        kind = self._devices[0].partition(":")[0]
        return f"{plural(self.size, 'worker')} of {plural(len(self._devices), kind)}"

    def settle_reducers(self) -> dict[str, float]:
        """Nothing: pool 2 holds parameter servers."""
        return {}

    @property
    def observed(self) -> dict[str, float]:
        """Nothing: the GPUs are those of the workers, of which none waits for another."""
        return {}

    def take(self, steps: Steps) -> Totals:
        """Give out the parts of these steps; returns the totals of what has come back meanwhile.

        Where something is due behind them it waits for all, and the state is up to date.
        """
        for part in steps.parts:
            given = (tensors(part), *counted(steps.rates, self._config))
            self._results.append(self._coordinator.schedule(self._take, args=given))
        config, end = self._config, steps.end
        saves = due(end, config, config.checkpoint_every)
        is_due = saves or due(end, config, config.log_every, config.evaluate_every)
        totals = self._finished(0 if is_due else AHEAD * self.size)
        if saves:
            with self._heartbeats.patience():
                self._pull(end)
        if end == config.steps:
            self._heartbeats.need_nobody()
        return totals

    def evaluate(self, data: Data) -> Totals:
        """Score every held-out sample exactly once, on the workers; after the last step here, without them."""
        if self._state.step == self._config.steps:
            self._heartbeats.need_nobody()
            return self._alone.evaluate(data)
        parts = (data.evaluation(rank, self.size, self._config.micro_batches) for rank in self.ranks)
        totals = 0.0
        for ones in zip(*parts, strict=True):
            self._results.extend(self._coordinator.schedule(self._score, args=tensors(one)) for one in ones)
            totals += self._finished(AHEAD * self.size)
        return totals + self._finished(0)

    def _finished(self, left: int) -> Totals:
        """Wait until at most `left` parts are out; the sum of what those that came back say."""
        totals = tf.zeros(len(self.names) + 1)
        while len(self._results) > left:
            with self._heartbeats.patience():
                totals += fetched(self._results.popleft(), self._coordinator)
        return totals

    def _functions(self) -> tuple[Any, Any]:
        """Compile what workers run: some steps with one part of each global batch, and scoring one batch."""

        @tf.function  # type: ignore[untyped-decorator]
        def take(parts: Batch, rates: tf.Tensor, count: tf.Tensor) -> Totals:
            totals = tf.zeros(len(self.names) + 1)
            for i in turns(self._config, count):
                self._optimizer.learning_rate.assign(rates[i] / self.size)
                totals += self._step(turn(parts, i))
            return totals

        @tf.function  # type: ignore[untyped-decorator]
        def score(batch: Batch, mask: tf.Tensor) -> Totals:
            output = self._forward(list(map(tf.convert_to_tensor, self._weights)), batch.inputs, training=False)
            return measure(output, batch, model.losses(output, batch), mask)

        return take, score

    def _step(self, batch: Batch) -> Totals:
        """One step of a worker: gradients with the weights that the servers have now, and the update there."""
        weights = list(map(tf.convert_to_tensor, self._weights))
        totals, sums = 0.0, [tf.zeros_like(weight) for weight in weights]
        for i, part in enumerate(micro_batches(batch, self._config.micro_batches * len(self._devices))):
            with tf.device(self._devices[i % len(self._devices)]), tf.GradientTape() as tape:
                tape.watch(weights)
                output = self._forward(weights, part.inputs, training=True)
                losses = model.losses(output, part)
                gradients = tape.gradient(tf.reduce_sum(losses) / batch.inputs.shape[0], weights)
            totals += measure(output, part, losses)
            sums = [total + gradient for total, gradient in zip(sums, gradients, strict=True)]
        clipped, _ = tf.clip_by_global_norm(sums, self._config.clip)
        self._optimizer.apply([part for one in map(split, clipped, self._weights) for part in one], self._pieces)
        return totals

    def _forward(self, weights: Sequence[tf.Tensor], inputs: tf.Tensor, training: bool) -> tf.Tensor:
        return self._state.net.stateless_call(weights, self._fixed, inputs, training=training)[0]

    def _push(self) -> None:
        """State -> servers."""
        for mine, theirs in self._copies():
            ends = np.cumsum([piece.shape[0] for piece in theirs])
            for piece, value in zip(theirs, np.split(mine.numpy(), ends[:-1]), strict=True):
                piece.assign(value)
        self._optimizer.iterations.assign(self._state.optimizer.iterations.numpy() * self.size)

    def _pull(self, step: int) -> None:
        """Servers -> state, after this step."""
        for mine, theirs in self._copies():
            mine.assign(np.concatenate([piece.numpy() for piece in theirs]))
        self._state.optimizer.iterations.assign(step)

    def _copies(self) -> Iterator[tuple[Any, list[Any]]]:
        """Each variable of the state with its pieces on the servers."""
        net, ours = self._state.net, self._state.optimizer
        yield from zip(net.trainable_variables, map(pieces, self._weights), strict=True)
        for name in MOMENTS:
            theirs = iter(moments(self._optimizer, name))
            for mine, weight in zip(moments(ours, name), self._weights, strict=True):
                yield mine, [*islice(theirs, len(pieces(weight)))]


def fetched(result: Any, coordinator: Any) -> Any:
    """Return the result of a scheduled function.

    It is there for the chief as soon as a worker has computed it, though still on that worker. If the worker is lost
    before it is copied, the coordinator lets another one compute it again; `Heartbeats.patience` bounds the wait.

    Raises:
        tf.errors.OpError: what the coordinator does not recover from.
    """
    while True:
        try:
            return result.fetch()
        except tf.errors.OpError:
            coordinator.done()  # raises what it has given up on
            time.sleep(RETRY_SECONDS)


def plural(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def pieces(weight: Any) -> list[Any]:
    """The slices along the first axis that a variable consists of; small ones are whole."""
    return list(getattr(weight, "variables", [weight]))


def split(gradient: tf.Tensor, weight: Any) -> list[tf.Tensor]:
    """The parts of a gradient that belong to the pieces of a variable."""
    return list(tf.split(gradient, [piece.shape[0] for piece in pieces(weight)]))


def moments(optimizer: keras.optimizers.AdamW, name: str) -> list[keras.Variable]:
    """Return the moments of one kind, in the order of the variables that the optimizer was built for."""
    return [variable for variable in optimizer.variables if variable.path.endswith(name)]


def worker_devices() -> list[str]:
    """Each GPU of a worker, else its CPU, as a worker names them; all workers are alike."""
    gpus = [gpu.name for gpu in tf.config.list_logical_devices("GPU") if "/job:worker/replica:0/task:0/" in gpu.name]
    return [f"GPU:{i}" for i in range(len(gpus))] or ["CPU:0"]

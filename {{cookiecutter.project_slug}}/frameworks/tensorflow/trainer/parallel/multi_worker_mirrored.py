"""Each GPU holds the model, and all of them take each step together."""

import os

import keras
import tensorflow as tf

from trainer import model, optional, totals, train
from trainer.checkpoints.saver import Checkpoints, State
from trainer.cluster import devices
from trainer.cluster.processes import bounded, take_back_sigterm, with_peers
from trainer.cluster.spec import Cluster, Node
from trainer.cluster.world import World, resolver
from trainer.config import Config
from trainer.data import Batch
from trainer.job import Job
from trainer.parallel.calls import Steps, counted, tensors, turn, turns
from trainer.parallel.precision import compute_in
from trainer.parallel.strategy import Strategy
from trainer.shards import Data
from trainer.totals import Totals, measure
from trainer.vertex import reducers
from trainer.vertex.errors import TrainerError
from trainer.vertex.log import say

MIB = 2**20


class MultiWorkerMirrored(Strategy):
    def servers(self, config: Config, cluster: Cluster) -> tuple[Node, ...]:
        """Return nobody: reducers, in pool 2, run another program.

        Raises:
            TrainerError: this replica is in pool 2.
        """
        if any(node.name == cluster.name for node in cluster.servers):
            cure = "give it no command if it holds reducers, whose image has one"
            if "parameter_server" in optional.strategies():
                cure += ", and every pool --strategy parameter_server if it holds parameter servers"
            raise TrainerError(f"{cluster.name}: only pools 0 and 1 train; {cure}")
        return ()

    def take_part(self, job: Job) -> None:
        """Join the other machines, and train with them.

        Raises:
            PeerError: another machine was lost.
        """
        with with_peers(job.cluster):
            world, data = join(job.config, job.cluster), Data(job)
            if world.is_chief:
                count = world.device_count * len(world.layer_devices)
                say(f"training on {count} x {devices.describe()}, {job.config.strategy}: {world.mesh}")
            state = train.new_state(job.config, data.example, world)
            copy = train.new_copy(job.config, data.example) if world.is_chief else None
            checkpoints = Checkpoints(job, world, copy)
            checkpoints.restore(state)
            train.train(job, state, data, Mirrored(job, state, data.example, world), checkpoints)
            world.wait()  # a chief that leaves first looks like a failure to the others


class Mirrored:
    """All devices of all machines, which take each step together."""

    def __init__(self, job: Job, state: State, example: Batch, world: World) -> None:
        self._job, self._config, self._state, self._world = job, job.config, state, world
        self.is_chief, self.names = world.is_chief, totals.names(state.net, example)
        self.ranks, self.size, self.device_name = world.device_ranks, world.device_count, devices.name()
        self.device_count = world.device_count * len(world.layer_devices)
        self._communicating = tf.constant(0.0)

    def take(self, steps: Steps) -> Totals:
        """Take these steps; returns their totals over the global batches."""
        parts = self._world.distribute([tensors(part) for part in steps.parts])
        summed, self._communicating = self._take(parts, *counted(steps.rates, self._config))
        return summed

    def settle_reducers(self) -> dict[str, float]:
        """Find out whether the job's reducers are used. Every machine must call it."""
        count, gpus = len(self._job.cluster.servers), len(tf.config.list_physical_devices("GPU"))
        here = {"rank": self._world.rank, "ranks": self._world.device_count, "gpus": gpus}
        return reducers.settle(count, os.environ, self._world.sum, **here, required=self._config.require_reducers)

    @property
    def observed(self) -> dict[str, float]:
        """On GPUs the most memory in use, elsewhere the seconds for which the newest step has only communicated."""
        return devices.peak_memory() or {"communication_seconds": float(self._communicating)}

    @tf.function  # type: ignore[untyped-decorator]
    def _take(self, parts: Batch, rates: tf.Tensor, count: tf.Tensor) -> tuple[Totals, tf.Tensor]:
        config, state, strategy = self._config, self._state, self._world.strategy
        summed, communicating = tf.zeros(len(self.names) + 1), tf.constant(0.0, tf.float64)
        for i in turns(config, count):
            state.optimizer.learning_rate.assign(rates[i])
            of_step = strategy.run(lambda part: train.train_step(config, state, turn(part, i)), args=(parts,))  # noqa: B023
            measured_there, communicating = (strategy.experimental_local_results(one)[0] for one in of_step)
            summed += measured_there
        return summed, communicating

    def evaluate(self, data: Data) -> Totals:
        """Score every held-out sample exactly once. Every machine must call it."""
        share = [data.evaluation(rank, self.size, self._config.micro_batches) for rank in self.ranks]
        of_each = (self._world.distribute([tensors(one) for one in ones]) for ones in zip(*share, strict=True))
        return sum((self._score(*one) for one in of_each), start=0.0)

    @tf.function  # type: ignore[untyped-decorator]
    def _score(self, batch: Batch, mask: tf.Tensor) -> Totals:
        net, strategy = self._state.net, self._world.strategy
        return strategy.reduce(train.SUM, strategy.run(lambda *one: score(net, *one), args=(batch, mask)), axis=None)


def score(net: keras.Model, batch: Batch, mask: tf.Tensor) -> Totals:
    """Measure one batch, without training."""
    output = net(batch.inputs, training=False)
    return measure(output, batch, model.losses(output, batch), mask)


def join(config: Config, cluster: Cluster) -> World:
    """Join the other machines; the process ends if they do not come within about `--collective-timeout` seconds.

    Raises:
        TrainerError: the image is made for GPUs, and none or not enough are usable.
        IdleReducersError: reducers are required, and cannot be used.
    """
    gpus = devices.usable_gpus(cluster)
    count, required = len(cluster.servers), config.require_reducers
    reducers.prepare(count, os.environ, rank=cluster.rank, gpus=bool(gpus), required=required)
    layers = devices.layer_devices(config.model_parallel, gpus, cluster)
    compute_in(config.precision, gpus)
    options = tf.distribute.experimental.CommunicationOptions(
        bytes_per_pack=config.bytes_per_pack * MIB,
        timeout_seconds=config.collective_timeout,
        implementation=tf.distribute.experimental.CommunicationImplementation[("NCCL" if gpus else "RING")],
    )
    replicas = min(len(gpus), 1) if len(layers) > 1 else len(gpus)
    with bounded(config.collective_timeout):  # TensorFlow waits without a limit
        strategy = tf.distribute.MultiWorkerMirroredStrategy(resolver(cluster, replicas), options)
    take_back_sigterm()
    return World(strategy, cluster.rank, len(cluster.nodes), layers)


STRATEGY = MultiWorkerMirrored()

"""Each GPU holds the whole model, and all GPUs run each step together."""

import os
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import tensorflow as tf

from trainer import flags
from trainer.cluster import devices
from trainer.cluster.devices import on_host
from trainer.cluster.preemption import take_back_sigterm
from trainer.cluster.processes import bounded, with_peers
from trainer.cluster.spec import Cluster
from trainer.cluster.world import Mesh, World, resolver
from trainer.config import learning_rate
from trainer.data import Batch
from trainer.parallel.strategy import Loop, Spread, Strategy, StrategyFlags
from trainer.samples.batches import Masked
from trainer.step.state import State
from trainer.step.totals import Totals, score
from trainer.vertex import reducers
from trainer.vertex.errors import TrainerError

MIB = 2**20
SUM = tf.distribute.ReduceOp.SUM
TRACING = 10  # timeout factor for the first call, which traces and compiles


@dataclass(frozen=True, kw_only=True)
class Flags(StrategyFlags):
    bytes_per_pack: int = 64
    """Size of a gradient pack in MiB. Each pack is all-reduced as a whole. Large packs make full use of a fast network
    and Reduction Server. The all-reduce of small packs starts earlier, before all gradients are computed."""

    def findings(self) -> Iterator[str]:
        return flags.at_least(1, self, "bytes_per_pack")


class MultiWorkerMirrored(Strategy):
    flags: type[Flags] = Flags

    def lay_out(self, config: Flags, cluster: Cluster, shards: Path) -> Mesh:
        if any(node.name == cluster.name for node in cluster.servers):
            cure = "if this pool holds reducers, remove its command, because the reducer image has its own"
            if "parameter_server" in flags.strategies():
                cure += (
                    "; if this pool holds parameter servers, add --strategy parameter_server to the args of every pool"
                )
            raise TrainerError(f"{cluster.name}: only pools 0 and 1 train; {cure}")
        return Mesh({"replicate": len(cluster.nodes) * max(len(devices.usable_gpus(cluster)), 1)})

    @contextmanager
    def join(self, config: Flags, cluster: Cluster, mesh: Mesh) -> Iterator[World]:
        """Join the other machines.

        If a machine doesn't join within about `--collective-timeout` seconds, this process exits.

        Raises PeerError if a machine is lost, and IdleReducersError if reducers are required but can't be used.
        """
        gpus, count, required = devices.usable_gpus(cluster), len(cluster.servers), config.require_reducers
        reducers.prepare(count, os.environ, rank=cluster.rank, gpus=bool(gpus), required=required)
        devices.compute_in(config.precision, gpus)
        options = tf.distribute.experimental.CommunicationOptions(
            bytes_per_pack=config.bytes_per_pack * MIB,
            implementation=tf.distribute.experimental.CommunicationImplementation[("NCCL" if gpus else "RING")],
        )
        each = mesh.data_size // len(cluster.nodes)
        with with_peers(cluster):
            with bounded(config.collective_timeout):  # TensorFlow itself doesn't have a timeout
                found = resolver(cluster, min(len(gpus), each))
                strategy = tf.distribute.MultiWorkerMirroredStrategy(found, options)
            take_back_sigterm()
            if (size := strategy.num_replicas_in_sync) != mesh.data_size:
                cure = "give all machines the same number of GPUs"
                raise TrainerError(f"wrong world size: {size} devices joined instead of {mesh.data_size}; {cure}")
            world = World(cluster.rank, len(cluster.nodes), mesh, strategy)
            yield world
            world.wait()  # if the chief exited first, the other machines would report a failure

    def wrap(self, loop: Loop, state: State, world: World) -> "Mirrored":
        return Mirrored(self, loop, state, world)

    def sync(self, totals: Totals, gradients: Sequence[tf.Tensor]) -> tuple[Totals, Sequence[tf.Tensor], Any]:
        computed, context = clock(gradients), tf.distribute.get_replica_context()
        if context.num_replicas_in_sync > 1:
            # A single call sends gradients and totals in the same packs.
            totals, *gradients = context.all_reduce(SUM, [totals, *gradients])
        return totals, gradients, clock(gradients) - computed

    def communication(self, spread: Spread) -> dict[str, float]:
        """Return the computation and communication times of the latest step, in seconds.

        On GPUs, return an empty dictionary, because a measurement would delay the step.
        """
        if tf.config.list_physical_devices("GPU"):
            return {}
        communicating = float(spread.communicating)
        return {"computing_seconds": spread.seconds - communicating, "communication_seconds": communicating}


def clock(values: Sequence[tf.Tensor]) -> tf.Tensor:
    """Return a timestamp, in seconds, taken after all values are computed. If there are GPUs, return 0."""
    if tf.config.list_physical_devices("GPU"):
        return tf.constant(0.0, tf.float64)
    with tf.control_dependencies(values):
        return tf.timestamp()


class Mirrored:
    """The training state on all devices. All devices on all machines run each step together."""

    def __init__(self, strategy: Strategy, loop: Loop, state: State, world: World) -> None:
        self.loop, self.communicating, self.seconds = loop, 0.0, 0.0
        self._strategy, self._state, self._world = strategy, state, world

    def take(self, parts: Sequence[Batch]) -> Totals:
        """Run the next step on this machine's slices of the global batch.

        Returns the sums of the loss and the metrics over the whole global batch.
        """
        began, rate = time.monotonic(), learning_rate(self.loop.config, self._state.step)
        with self._bounded(self._take):
            totals, self.communicating = self._take(self._world.distribute(on_host(parts)), tf.constant(rate))
        self.seconds = time.monotonic() - began  # on a CPU, the call returns when the step is computed
        return totals

    @tf.function  # type: ignore[untyped-decorator]
    def _take(self, parts: Batch, rate: tf.Tensor) -> tuple[Totals, tf.Tensor]:
        state, world = self._state, self._world
        state.optimizer.learning_rate.assign(rate)
        step = partial(self.loop.step, self.loop.config, self._strategy, state, world=world)
        totals, communicating = map(world.strategy.experimental_local_results, world.strategy.run(step, [parts]))
        return totals[0], communicating[0]

    def score(self, parts: Iterable[Sequence[Masked]]) -> Totals:
        """Return the sums of the loss and the metrics over all batches in `parts`. Every machine must call this method.

        Each item of `parts` contains one batch per device.
        """
        total = 0.0
        for part in parts:
            with self._bounded(self._score):
                total += self._score(*self._world.distribute(on_host(part)))
        return total

    @tf.function  # type: ignore[untyped-decorator]
    def _score(self, batch: Batch, mask: tf.Tensor) -> Totals:
        measured = self._world.strategy.run(lambda *one: score(self._state.net, *one), [batch, mask])
        return self._world.strategy.reduce(SUM, measured, axis=None)

    def _bounded(self, function: Any) -> AbstractContextManager[None]:
        """Set a timeout for a call to `function`, during which the machines wait for each other."""
        times = 1 if function.experimental_get_tracing_count() else TRACING
        return self._world.bounded(self.loop.config.collective_timeout * times)


STRATEGY = MultiWorkerMirrored()

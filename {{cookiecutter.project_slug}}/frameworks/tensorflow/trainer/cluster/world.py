"""All machines of a run: how their devices lie, which one this is, and what the machines add up."""

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import tensorflow as tf

from trainer.cluster import processes
from trainer.cluster.spec import Cluster

PATIENCE_SECONDS = 86_400.0  # of machines between steps; of one that ends, heartbeats tell at once


@dataclass(frozen=True)
class Mesh:
    """Number of devices along each dimension, outermost first, so that the last one stays within a machine.

    Along `replicate` devices take different samples; along `layers` they share the layers of one model.
    """

    sizes: Mapping[str, int]

    @property
    def size(self) -> int:
        return math.prod(self.sizes.values())

    @property
    def data_size(self) -> int:
        """Shares into which the global batch is divided."""
        return self.sizes["replicate"]

    def __str__(self) -> str:
        """`replicate 3 x layers 8`"""
        return " x ".join(f"{name} {size}" for name, size in self.sizes.items())


@dataclass(frozen=True)
class World:
    """The machines that run the loop, which of them this one is, their mesh, and the strategy over their devices.

    The defaults are a process by itself, with the strategy that TensorFlow has without one: on the first device.
    """

    rank: int = 0
    size: int = 1
    mesh: Mesh = Mesh({"replicate": 1})
    strategy: tf.distribute.Strategy = field(default_factory=tf.distribute.get_strategy)

    @property
    def is_chief(self) -> bool:
        return self.rank == 0

    @property
    def told(self) -> str:
        """Name of a replica that does not run the loop, and for whose end the run has to end; empty for none."""
        return ""

    @property
    def data_ranks(self) -> range:
        """Ranks of this machine's shares among all shares of the global batch."""
        each = self.mesh.data_size // self.size
        return range(self.rank * each, (self.rank + 1) * each)

    def distribute(self, values: Sequence[Any]) -> Any:
        """One value for each of this machine's devices, in the order of `data_ranks`."""
        return self.strategy.experimental_distribute_values_from_function(
            lambda context: values[context.replica_id_in_sync_group - self.data_ranks.start]
        )

    def sum(self, value: int) -> int:
        """The sum of every machine's value, on each of them. Every machine must call it."""
        return sum(own[0] for own in self.gather([value]))

    def gather(
        self, own: Sequence[int], total: Callable[[Any], tf.Tensor] | None = None, timeout: float = PATIENCE_SECONDS
    ) -> list[list[int]]:
        """Every machine's values, as many of each, by rank. Every machine must call it.

        They wait for each other for longer than in a step: the chief may have a large model to read or to write.

        Args:
            total: adds tables up, in place of `World.total`.
            timeout: in seconds, after which the process ends.
        """
        rows = [[int(value) if rank == self.rank else 0 for value in own] for rank in range(self.size)]
        table = tf.constant(rows, tf.int64)
        values = self.distribute([table * int(i == 0) for i, _ in enumerate(self.data_ranks)])
        with self.bounded(timeout):
            gathered: list[list[int]] = (total or self.total)(values).numpy().tolist()
        return gathered

    def total(self, values: Any) -> tf.Tensor:
        """The sum of the values of all devices. Every machine must call it."""
        total = self.strategy.extended.reduce_to(tf.distribute.ReduceOp.SUM, values, "/device:CPU:0")
        return self.strategy.experimental_local_results(total)[0]

    def bounded(self, seconds: float) -> AbstractContextManager[None]:
        """Bound a wait for the other machines; none where there are none.

        TensorFlow 2.21 would bound each of its sums by a thread that sleeps for so long: thousands in a training.
        Source: tensorflow/core/common_runtime/base_collective_executor.cc, `SchedNonBlockingClosureAfter`.
        """
        return processes.bounded(seconds) if self.size > 1 else nullcontext()

    def wait(self) -> None:
        """Return when every machine is here."""
        self.sum(0)


def resolver(cluster: Cluster, gpus: int) -> tf.distribute.cluster_resolver.ClusterResolver:
    """The chief and the workers, and nobody else: a reducer in this list would be waited for, for ever.

    Args:
        gpus: of each machine, one model on each. SimpleClusterResolver does not detect GPUs; without this count,
            training runs on the CPU.
    """
    chief, *workers = (node.address for node in cluster.nodes)
    return tf.distribute.cluster_resolver.SimpleClusterResolver(
        tf.train.ClusterSpec({"chief": [chief], "worker": workers} if workers else {}),
        task_type="worker" if cluster.rank else "chief",
        task_id=max(cluster.rank - 1, 0),
        num_accelerators={"GPU": gpus},
        rpc_layer="grpc",
    )

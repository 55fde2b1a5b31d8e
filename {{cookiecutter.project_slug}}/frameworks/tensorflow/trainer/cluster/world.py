"""Describes a run's machines and device mesh, and exchanges values between the machines."""

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import tensorflow as tf

from trainer.cluster import processes
from trainer.cluster.spec import Cluster

PATIENCE_SECONDS = 86_400.0  # the timeout between steps; if a machine exits, heartbeats report it immediately


@dataclass(frozen=True)
class Mesh:
    """The number of devices along each dimension of the mesh.

    The outermost dimension comes first. Devices along the `layers` dimension belong to the same machine.

    Devices along the `replicate` dimension train on different samples. Devices along the `layers` dimension share the
    layers of one model.
    """

    sizes: Mapping[str, int]

    @property
    def size(self) -> int:
        return math.prod(self.sizes.values())

    @property
    def data_size(self) -> int:
        """The data-parallel size, which is the number of slices of the global batch."""
        return self.sizes["replicate"]

    def __str__(self) -> str:
        """Return the names and sizes of the dimensions, such as `replicate 3 x layers 8`."""
        return " x ".join(f"{name} {size}" for name, size in self.sizes.items())


@dataclass(frozen=True)
class World:
    """The machines that run the training loop, with their mesh and strategy, and the rank of this machine.

    The defaults describe a single process with TensorFlow's default strategy, which uses the first device.
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
        """The name of a replica that doesn't run the training loop, but whose preemption notice stops the run.

        The name is empty if no such replica was asked to stop.
        """
        return ""

    @property
    def data_ranks(self) -> range:
        """The data ranks of this machine, one for each of its slices of the global batch."""
        each = self.mesh.data_size // self.size
        return range(self.rank * each, (self.rank + 1) * each)

    def distribute(self, values: Sequence[Any]) -> Any:
        """Distribute one value to each of this machine's devices, in the order of `data_ranks`."""
        return self.strategy.experimental_distribute_values_from_function(
            lambda context: values[context.replica_id_in_sync_group - self.data_ranks.start]
        )

    def sum(self, value: int) -> int:
        """Return the sum of `value` over all machines. Every machine must call this method."""
        return sum(own[0] for own in self.gather([value]))

    def gather(
        self, own: Sequence[int], total: Callable[[Any], tf.Tensor] | None = None, timeout: float = PATIENCE_SECONDS
    ) -> list[list[int]]:
        """Return each machine's values, in rank order.

        Every machine must call this method with the same number of values.

        The default timeout is longer than a step's timeout, because the chief might read or write a large model.

        Args:
            total: a function that replaces `World.total`.
            timeout: the number of seconds after which this process exits if other machines don't respond.
        """
        rows = [[int(value) if rank == self.rank else 0 for value in own] for rank in range(self.size)]
        table = tf.constant(rows, tf.int64)
        values = self.distribute([table * int(i == 0) for i, _ in enumerate(self.data_ranks)])
        with self.bounded(timeout):
            gathered: list[list[int]] = (total or self.total)(values).numpy().tolist()
        return gathered

    def total(self, values: Any) -> tf.Tensor:
        """Return the sum of `values` over all devices. Every machine must call this method."""
        total = self.strategy.extended.reduce_to(tf.distribute.ReduceOp.SUM, values, "/device:CPU:0")
        return self.strategy.experimental_local_results(total)[0]

    def bounded(self, seconds: float) -> AbstractContextManager[None]:
        """Set a timeout for a block that waits for other machines. For a single machine, don't set one.

        TensorFlow's own timeout isn't used, because TensorFlow 2.21 starts a sleeping thread for each collective
        operation. A training run would start thousands of these threads.
        Source: tensorflow/core/common_runtime/base_collective_executor.cc, `SchedNonBlockingClosureAfter`.
        """
        return processes.bounded(seconds) if self.size > 1 else nullcontext()

    def wait(self) -> None:
        """Wait until every machine has called this method."""
        self.sum(0)


def resolver(cluster: Cluster, gpus: int) -> tf.distribute.cluster_resolver.ClusterResolver:
    """Return a cluster resolver for the chief and the workers.

    Reducers are excluded, because TensorFlow would otherwise wait for them forever.

    Args:
        gpus: the number of GPUs that hold a model on each machine. SimpleClusterResolver doesn't detect GPUs, so
            training would otherwise run on the CPU.
    """
    chief, *workers = (node.address for node in cluster.nodes)
    return tf.distribute.cluster_resolver.SimpleClusterResolver(
        tf.train.ClusterSpec({"chief": [chief], "worker": workers} if workers else {}),
        task_type="worker" if cluster.rank else "chief",
        task_id=max(cluster.rank - 1, 0),
        num_accelerators={"GPU": gpus},
        rpc_layer="grpc",
    )

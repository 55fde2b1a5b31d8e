"""All machines of a run: which one this is, their devices, and what they add up."""

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from trainer.cluster.spec import Cluster

PATIENCE_SECONDS = 86_400.0  # of machines between steps; of one that ends, heartbeats tell at once


@dataclass(frozen=True)
class World:
    """The machines of the run, which of them this one is, and the strategy over all their devices."""

    strategy: tf.distribute.Strategy
    rank: int
    size: int
    layer_devices: Sequence[str] = ("",)  # that share one model on each machine; "": each device has its own

    def scope(self) -> contextlib.AbstractContextManager[Any]:
        """Return the scope of variables; with model parallelism they are not mirrored, and each has one device."""
        return contextlib.nullcontext() if self.is_model_parallel else self.strategy.scope()

    @property
    def is_model_parallel(self) -> bool:
        return len(self.layer_devices) > 1

    @property
    def is_chief(self) -> bool:
        return self.rank == 0

    @property
    def device_count(self) -> int:
        """Over all machines."""
        return int(self.strategy.num_replicas_in_sync)

    @property
    def mesh(self) -> str:
        """`replicate 3 x layers 8`"""
        return f"replicate {self.device_count}" + f" x layers {len(self.layer_devices)}" * self.is_model_parallel

    @property
    def device_ranks(self) -> range:
        """Ranks of this machine's devices among all devices."""
        each = self.device_count // self.size
        return range(self.rank * each, (self.rank + 1) * each)

    def distribute(self, values: Sequence[Any]) -> Any:
        """One value for each of this machine's devices, in the order of `device_ranks`."""
        return self.strategy.experimental_distribute_values_from_function(
            lambda context: values[context.replica_id_in_sync_group - self.device_ranks.start]
        )

    def sum(self, value: int) -> int:
        """The sum of every machine's value, on each of them. Every machine must call it.

        They wait for each other for longer than in a step: the chief may have a large model to read or to write.
        """
        values = self.distribute([tf.constant(value if i == 0 else 0) for i, _ in enumerate(self.device_ranks)])
        patient = tf.distribute.experimental.CommunicationOptions(timeout_seconds=PATIENCE_SECONDS)
        total = self.strategy.extended.reduce_to(tf.distribute.ReduceOp.SUM, values, "/device:CPU:0", patient)
        return int(self.strategy.experimental_local_results(total)[0])

    def wait(self) -> None:
        """Return when every machine is here."""
        self.sum(0)


def resolver(cluster: Cluster, gpus: int) -> tf.distribute.cluster_resolver.ClusterResolver:
    """The chief and the workers, and nobody else: a reducer in this list would be waited for, for ever.

    Args:
        gpus: of each machine, one model on each. SimpleClusterResolver does not detect GPUs; without this count,
            training runs on the CPU.
    """
    gpu_counts = {"GPU": gpus}
    if len(cluster.nodes) == 1:
        return tf.distribute.cluster_resolver.SimpleClusterResolver(
            tf.train.ClusterSpec({}), num_accelerators=gpu_counts
        )
    chief, *workers = (node.address for node in cluster.nodes)
    return tf.distribute.cluster_resolver.SimpleClusterResolver(
        tf.train.ClusterSpec({"chief": [chief], "worker": workers}),
        task_type="worker" if cluster.rank else "chief",
        task_id=max(cluster.rank - 1, 0),
        num_accelerators=gpu_counts,
        rpc_layer="grpc",
    )

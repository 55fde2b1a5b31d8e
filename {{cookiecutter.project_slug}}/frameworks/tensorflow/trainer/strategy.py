"""Cluster -> tf.distribute strategy. Each machine runs one process, which drives all its GPUs."""

import contextlib
import os
import re
import signal
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import metadata
from typing import Any

import keras
import tensorflow as tf

from trainer import driver, reducers, watchdog
from trainer.cluster import Cluster
from trainer.config import Config
from trainer.errors import PeerError, TrainerError

MIB = 2**20
PATIENCE_SECONDS = 86_400.0  # of machines between steps; of one that ends, heartbeats tell at once
# What TensorFlow raises for a peer that is gone or silent, and never for a fault of the model or the data.
LOSSES = (tf.errors.UnavailableError, tf.errors.AbortedError, tf.errors.DeadlineExceededError)
TIMED_OUT = "Collective has timed out"
NCCL_LOST = "remote process exited or there was a network error"  # within an InternalError
PRECISION = "mixed_bfloat16"  # of the forward pass, on GPUs that have it; weights and gradients stay float32

# What ours override of Keras' optimizers; under another name gradients would be all-reduced twice, without a word.
PRIVATE = ("_all_reduce_sum_gradients", "_apply_weight_decay", "_backend_update_step")


@dataclass(frozen=True)
class World:
    """The machines of the run, which of them this one is, and the strategy over all their devices."""

    strategy: tf.distribute.Strategy
    rank: int
    size: int
    layer_devices: Sequence[str] = ("",)  # that share one model on each machine; "": each device has its own
    reducers: int = 0  # that NCCL may come to use

    def scope(self) -> contextlib.AbstractContextManager[Any]:
        """Where variables are made; with model parallelism they are not mirrored, and each has one device."""
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

    def __str__(self) -> str:
        """`16 x NVIDIA A100-SXM4-40GB (driver 580.65.06, CUDA 12.5.1, NCCL 2.27.7)`"""
        count = self.device_count * len(self.layer_devices)
        if not tf.config.list_physical_devices("GPU"):
            return f"{count} x CPU"
        return f"{count} x {self.device_name} ({driver.versions(built_with_cuda(), nccl())})"

    @property
    def device_name(self) -> str:
        """`NVIDIA A100-SXM4-40GB`"""
        gpus = tf.config.list_physical_devices("GPU")
        return str(tf.config.experimental.get_device_details(gpus[0]).get("device_name", "GPU")) if gpus else "CPU"

    @property
    def mesh(self) -> str:
        """`replicate 3 x layers 8`"""
        return f"replicate {self.device_count}" + f" x layers {len(self.layer_devices)}" * self.is_model_parallel

    @property
    def device_ranks(self) -> range:
        """Those of this machine's devices, among all."""
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

    @property
    def memory(self) -> dict[str, float]:
        """The most that a GPU of this machine had in use."""
        count = len(tf.config.list_physical_devices("GPU"))
        peaks = [tf.config.experimental.get_memory_info(f"GPU:{index}")["peak"] for index in range(count)]
        return {"memory_bytes": float(max(peaks))} if peaks else {}

    def settle_reducers(self, *, required: bool) -> dict[str, float]:
        """What `reducers.settle` returns. Every machine must call it."""
        gpus = len(tf.config.list_physical_devices("GPU"))
        here = {"rank": self.rank, "ranks": self.device_count, "gpus": gpus}
        return reducers.settle(self.reducers, os.environ, self.sum, **here, required=required)

    def wait(self) -> None:
        """Return when every machine is here."""
        self.sum(0)


class AdamW(keras.optimizers.AdamW):  # type: ignore[misc] # Keras has no types
    """AdamW for gradients that are all-reduced already.

    Keras 3 all-reduces them itself, and has no switch for it. But clipping needs the global norm of the all-reduced
    gradients, and a second all-reduce would double the traffic.
    """

    def _all_reduce_sum_gradients(self, grads_and_vars: Any) -> Any:
        return grads_and_vars


def require_keras() -> None:
    """Raises TrainerError where Keras is not as our optimizers want it."""
    if missing := [name for name in PRIVATE if not hasattr(keras.optimizers.AdamW, name)]:
        raise TrainerError(
            f"Keras {keras.__version__} has no {missing[0]}, which trainer/strategy.py overrides; install the version"
            " of requirements/, or rewrite the optimizers there and in trainer/placement.py"
        )


def build(config: Config, cluster: Cluster) -> World:
    """Join the other machines; the process ends if they do not come within about `--collective-timeout` seconds.

    Raises:
        TrainerError: the image is made for GPUs, and none or not enough are usable.
        IdleReducersError: reducers are required, and cannot be used.
    """
    gpus = usable_gpus(cluster)
    count = reducers.prepare(cluster, os.environ, gpus=bool(gpus), required=config.require_reducers)
    devices = layer_devices(config.model_parallel, gpus, cluster)
    compute_in(config.precision, gpus)
    options = tf.distribute.experimental.CommunicationOptions(
        bytes_per_pack=config.bytes_per_pack * MIB,
        timeout_seconds=config.collective_timeout,
        implementation=tf.distribute.experimental.CommunicationImplementation[("NCCL" if gpus else "RING")],
    )
    replicas = min(len(gpus), 1) if len(devices) > 1 else len(gpus)
    with watchdog.bounded(config.collective_timeout):  # TensorFlow waits without a limit
        strategy = tf.distribute.MultiWorkerMirroredStrategy(resolver(cluster, replicas), options)
    take_back_sigterm()
    return World(strategy, cluster.rank, len(cluster.nodes), devices, count)


def take_back_sigterm() -> None:
    """Let SIGTERM end this process again: to join others, TensorFlow puts a handler in its place that only takes note.

    Source: TensorFlow 2.21, xla/tsl/distributed_runtime/preemption/preemption_notifier.h, SigtermNotifier.
    """
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, signal.getsignal(signal.SIGTERM))


@contextlib.contextmanager
def with_peers(cluster: Cluster) -> Iterator[None]:
    """Say in one sentence that a peer was lost, instead of where this replica waited for it.

    Raises:
        PeerError: TensorFlow lost a machine, in a cluster of several.
    """
    try:
        yield
    except tf.errors.OpError as error:
        loss = lost_peer(error, cluster)
        if not loss:
            raise
        said = f"{cluster.name} lost a peer: {loss}; the next start resumes from the last checkpoint"
        raise PeerError(said) from None


def lost_peer(error: tf.errors.OpError, cluster: Cluster) -> str:
    """What the error says of a peer that is gone or silent, with our names; empty for every other error."""
    text = str(error.message) or type(error).__name__
    if len(cluster.nodes) == 1 or not (isinstance(error, LOSSES) or NCCL_LOST in text):
        return ""
    if TIMED_OUT in text:
        return "no answer within --collective-timeout: a replica is stuck or slow"
    first, *others = (text.rpartition("Collective ops is aborted by: ")[2] or text).splitlines()
    what = f"{first} {others[0]}" if first.endswith(":") and others else first.partition(". ")[0]
    return re.sub(r"/job:(chief|worker)(?:/replica:\d+)?/task:(\d+)", lambda task: _name(cluster, *task.groups()), what)


def _name(cluster: Cluster, job: str, index: str) -> str:
    """The replica that TensorFlow calls so."""
    rank = int(index) + (job == "worker")
    return cluster.nodes[rank].name if rank < len(cluster.nodes) else f"{job} {index}"


def usable_gpus(cluster: Cluster) -> list[tf.config.PhysicalDevice]:
    """Those of this machine.

    Raises:
        TrainerError: the image is made for GPUs, and none is usable.
    """
    gpus = set_up_gpus()
    if tf.test.is_built_with_cuda() and not gpus and not cluster.chief.is_local:
        raise TrainerError(f"{cluster.name}: {driver.why_no_gpu(built_with_cuda(), driver.installed())}")
    return gpus


def built_with_cuda() -> str:
    """The version of CUDA that this TensorFlow was built with."""
    return str(tf.sysconfig.get_build_info().get("cuda_version", "none"))


def nccl() -> str:
    """The version of NCCL's wheel, which the image installs."""
    try:
        return metadata.version("nvidia-nccl-cu12")
    except metadata.PackageNotFoundError:
        return "unknown"


def layer_devices(count: int, gpus: Sequence[tf.config.PhysicalDevice], cluster: Cluster) -> Sequence[str]:
    """The devices for `--model-parallel`; on a machine without GPUs the CPU is divided into as many.

    Raises:
        TrainerError: the machine has fewer GPUs.
    """
    if count == 1:
        return ("",)
    if gpus:
        if len(gpus) < count:
            raise TrainerError(f"--model-parallel is {count}, must be at most the {len(gpus)} GPUs of {cluster.name}")
        return [f"GPU:{i}" for i in range(count)]
    (cpu,) = tf.config.list_physical_devices("CPU")
    if len(tf.config.get_logical_device_configuration(cpu) or ()) < count:
        tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * count)
    return [f"CPU:{i}" for i in range(count)]


def compute_in(precision: str, gpus: Sequence[tf.config.PhysicalDevice]) -> None:
    """Set the type of the forward pass: `auto` is bfloat16 where the GPUs have it."""
    if precision == "bfloat16" or (precision == "auto" and gpus and has_bfloat16(gpus[0])):
        keras.config.set_dtype_policy(PRECISION)


def set_up_gpus() -> list[tf.config.PhysicalDevice]:
    """The GPUs of this machine, told to take memory as they need it; none is no fault."""
    gpus: list[tf.config.PhysicalDevice] = tf.config.list_physical_devices("GPU")
    for gpu in gpus:
        tf.config.experimental.set_memory_growth(gpu, True)
    return gpus


def has_bfloat16(gpu: tf.config.PhysicalDevice) -> bool:
    """True for GPUs that compute in bfloat16, from A100 and L4 on."""
    capability: tuple[int, int] = tf.config.experimental.get_device_details(gpu).get("compute_capability", (0, 0))
    return capability >= (8, 0)


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

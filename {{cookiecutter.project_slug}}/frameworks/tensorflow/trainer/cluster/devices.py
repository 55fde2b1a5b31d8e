"""Describes a machine's devices: their names, software versions, memory usage, and compute dtype."""

from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from trainer.cluster.spec import Cluster
from trainer.vertex import driver
from trainer.vertex.errors import TrainerError

LOW = "mixed_bfloat16"  # the policy for GPUs with bfloat16; weights and gradients stay float32


def describe() -> str:
    """Return the name of this machine's GPUs and the versions of their driver and libraries.

    If there are no GPUs, return `CPU`.

    Example: `NVIDIA A100-SXM4-40GB (driver 580.65.06, CUDA 12.5.1, NCCL 2.27.7)`
    """
    if not tf.config.list_physical_devices("GPU"):
        return name()
    return f"{name()} ({driver.versions(built_with_cuda(), driver.wheel('nvidia-nccl') or 'unknown')})"


def name() -> str:
    """Return the name of the GPU, such as `NVIDIA A100-SXM4-40GB`. If there are no GPUs, return `CPU`."""
    gpus = tf.config.list_physical_devices("GPU")
    return str(tf.config.experimental.get_device_details(gpus[0]).get("device_name", "GPU")) if gpus else "CPU"


def peak_memory() -> dict[str, float]:
    """Return the highest peak memory usage among this machine's GPUs, in bytes, for reports.

    If there are no GPUs, return an empty dictionary.
    """
    count = len(tf.config.list_physical_devices("GPU"))
    peaks = [tf.config.experimental.get_memory_info(f"GPU:{index}")["peak"] for index in range(count)]
    return {"memory_bytes": float(max(peaks))} if peaks else {}


def usable_gpus(cluster: Cluster) -> list[tf.config.PhysicalDevice]:
    """Return the GPUs of this machine. Raises TrainerError if the image is built for GPUs but no GPU is usable."""
    gpus = set_up_gpus()
    if tf.test.is_built_with_cuda() and not gpus and not cluster.chief.is_local:
        raise TrainerError(f"{cluster.name}: {driver.why_no_gpu(built_with_cuda(), driver.installed())}")
    return gpus


def set_up_gpus() -> list[tf.config.PhysicalDevice]:
    """Enable memory growth on all GPUs of this machine and return them."""
    gpus: list[tf.config.PhysicalDevice] = tf.config.list_physical_devices("GPU")
    for gpu in gpus:
        tf.config.experimental.set_memory_growth(gpu, True)
    return gpus


def compute_in(precision: str, gpus: Sequence[tf.config.PhysicalDevice]) -> None:
    """Set the compute dtype of the forward pass. `--precision auto` selects bfloat16 on A100, L4, and newer GPUs."""
    details = tf.config.experimental.get_device_details(gpus[0]) if gpus else {}
    has_it = details.get("compute_capability", (0, 0)) >= (8, 0)
    if precision == "bfloat16" or (precision == "auto" and has_it):
        keras.config.set_dtype_policy(LOW)


def on_host(arrays: Any) -> Any:
    """Convert the arrays in a batch, or in any nested structure, to tensors in host memory."""
    with tf.device("CPU:0"):  # otherwise the parts of all devices would pass through the first GPU
        return tf.nest.map_structure(tf.constant, arrays)


def sharing(count: int) -> list[str]:
    """Return the names of `count` devices that share a model.

    If there are no GPUs, split the CPU into `count` logical devices.
    """
    kind = "GPU" if tf.config.list_physical_devices("GPU") else "CPU"
    (cpu,) = tf.config.list_physical_devices("CPU")
    if kind == "CPU" and len(tf.config.get_logical_device_configuration(cpu) or ()) < count:
        tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * count)
    return [f"{kind}:{i}" for i in range(count)]


def built_with_cuda() -> str:
    """Return the CUDA version that TensorFlow was built with."""
    return str(tf.sysconfig.get_build_info().get("cuda_version", "none"))

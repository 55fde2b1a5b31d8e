"""Describes a process's device: its name, software versions, memory usage, and idle time."""

import math
from collections.abc import Callable
from functools import cache
from typing import Any, TypeVar

import torch

from trainer.vertex import driver

Batch = TypeVar("Batch", bound=tuple[Any, ...])  # a NamedTuple of arrays before the copy, and of tensors after it


def describe(device: torch.device) -> str:
    """Return a GPU's name and the versions of its driver and libraries. If there is no GPU, return `CPU`.

    Example: `NVIDIA A100-SXM4-40GB (driver 580.65.06, CUDA 13.0, NCCL 2.29.3)`
    """
    if device.type != "cuda":
        return name(device)
    nccl = ".".join(map(str, torch.cuda.nccl.version()))
    return f"{name(device)} ({driver.versions(str(torch.version.cuda), nccl)})"


def name(device: torch.device) -> str:
    """Return the name of the GPU, such as `NVIDIA A100-SXM4-40GB`. If there are no GPUs, return `CPU`."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"


def peak_memory(device: torch.device) -> dict[str, float]:
    """Return a GPU's peak memory usage, in bytes, for a report. For a CPU, return an empty dictionary."""
    return {"memory_bytes": float(torch.cuda.max_memory_allocated(device))} if device.type == "cuda" else {}


def idle_timer(device: torch.device) -> Callable[[], float]:
    """Return a function that returns how many seconds ago the device finished all work queued before this call."""
    if device.type != "cuda":
        return lambda: math.inf
    done = torch.cuda.Event(enable_timing=True)
    done.record()

    def idle() -> float:
        if not done.query():
            return 0.0
        now = torch.cuda.Event(enable_timing=True)
        now.record()
        now.synchronize()  # returns immediately, because the device is idle
        return float(done.elapsed_time(now)) / 1000

    return idle


def copy(batch: Batch, device: torch.device) -> Batch:
    """Copy a batch of arrays to the device as tensors. A GPU can process the previous batch during the copy."""
    tensors = type(batch)(*(torch.from_numpy(array) for array in batch))
    if device.type == "cpu":
        return tensors
    copying, computing = _copy_stream(device), torch.cuda.current_stream(device)
    with torch.cuda.stream(copying):  # asynchronous copies require pinned memory
        copied = type(batch)(*(tensor.pin_memory().to(device, non_blocking=True) for tensor in tensors))
    computing.wait_stream(copying)
    for tensor in copied:
        tensor.record_stream(computing)  # prevents later copies from reusing memory in use
    return copied


@cache
def _copy_stream(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)

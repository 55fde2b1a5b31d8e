"""Checks whether a job fits on its GPUs by comparing the memory that one process needs with the memory of one GPU.

The sizes of parameters, gradients, and the optimizer's moments are exact. The size of activations is an estimate of the
memory that the backward pass needs. RESERVED is an estimate of the memory that the CUDA context, NCCL's buffers, and
fragmentation occupy.
"""

import math
from dataclasses import dataclass

from vertex_launch.facts.catalog import Accelerator
from vertex_launch.plan.workload import Workload

RESERVED = 1.5e9  # bytes


@dataclass(frozen=True)
class Memory:
    """The memory that a job needs on one GPU and the GPU's total memory, in bytes."""

    parameters: float
    gradients: float
    optimizer: float
    activations: float
    card: float

    @property
    def total(self) -> float:
        return self.parameters + self.gradients + self.optimizer + self.activations + RESERVED

    @property
    def fits(self) -> bool:
        return self.total <= self.card


def memory(workload: Workload, gpus: int, card: Accelerator) -> Memory:
    """Return the memory that one GPU needs.

    Each of the `gpus` GPUs holds the whole model and processes an equal part of the global batch.
    """
    copies = workload.weight_copy_bytes if card.precision == workload.precision else 0
    samples = math.ceil(workload.global_batch / gpus / workload.micro_batches)  # of one micro-batch
    return Memory(
        workload.parameter_bytes + copies,
        workload.gradient_bytes,
        workload.optimizer_bytes,
        samples * _activation_bytes(workload, card),
        card.memory_gb * 1e9,
    )


def remedy(workload: Workload, gpus: int, card: Accelerator) -> str:
    """Return a change that makes a job fit on its GPUs, such as more micro-batches or a sharded model.

    If the job already fits, return "".
    """
    needs = memory(workload, gpus, card)
    if needs.fits:
        return ""
    state = needs.parameters + needs.gradients + needs.optimizer
    fitting = math.floor((needs.card - RESERVED - state) / _activation_bytes(workload, card))
    if fitting >= 1:
        micro_batches = math.ceil(math.ceil(workload.global_batch / gpus) / fitting)
        return f"the job would fit with --micro-batches {micro_batches} (micro-batches of at most {fitting} samples)"
    shard = state / gpus
    if shard + needs.activations + RESERVED <= needs.card:
        sharded = f"the job would fit if parameters, gradients, and optimizer state were sharded across all {gpus} GPUs"
        return f"{sharded}, with {shard / 1e9:.1f} GB on each GPU"
    return "sharding across all GPUs isn't enough; use GPUs with more memory, or split the model into pipeline stages"


def _activation_bytes(workload: Workload, card: Accelerator) -> float:
    if card.precision == workload.precision:
        return workload.activation_bytes_per_sample
    return workload.activation_bytes_per_sample_float32

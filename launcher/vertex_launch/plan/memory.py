"""Whether a job fits on its GPUs: the memory that one process needs, and the card's.

Parameters, gradients and the optimizer's moments are exact. Activations are an estimate of what the backward pass
needs, and RESERVED stands for the CUDA context, NCCL's buffers and fragmentation.
"""

import math
from dataclasses import dataclass

from vertex_launch.facts.catalog import Accelerator
from vertex_launch.plan.workload import Workload

RESERVED = 1.5e9  # bytes


@dataclass(frozen=True)
class Memory:
    """Bytes on one GPU."""

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
    """The bytes that one GPU needs if each of `gpus` holds the whole model and its share of the global batch."""
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
    """The change that makes a job fit: more micro-batches, the model sharded, or neither; "" if it fits."""
    needs = memory(workload, gpus, card)
    if needs.fits:
        return ""
    state = needs.parameters + needs.gradients + needs.optimizer
    fitting = math.floor((needs.card - RESERVED - state) / _activation_bytes(workload, card))
    if fitting >= 1:
        micro_batches = math.ceil(math.ceil(workload.global_batch / gpus) / fitting)
        return f"--micro-batches {micro_batches} would fit, with micro-batches of {fitting} samples or fewer"
    shard = state / gpus
    if shard + needs.activations + RESERVED <= needs.card:
        sharded = f"parameters, gradients and optimizer sharded over all {gpus} GPUs would fit"
        return f"{sharded}, {shard / 1e9:.1f} GB of them on each"
    return "not even sharded over all its GPUs does it fit: use GPUs with more memory, or split the model into stages"


def _activation_bytes(workload: Workload, card: Accelerator) -> float:
    if card.precision == workload.precision:
        return workload.activation_bytes_per_sample
    return workload.activation_bytes_per_sample_float32

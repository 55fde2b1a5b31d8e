"""Estimates a run's resource requirements from tensors without storage. The estimate doesn't require a GPU."""

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.flop_counter import FlopCounterMode

from trainer import model
from trainer.config import Config
from trainer.data import Batch
from trainer.parallel.strategy import LOW, StrategyFlags
from trainer.step.state import new_optimizer


@dataclass(frozen=True, kw_only=True)
class ResourceEstimate:
    """The parameter count, FLOPs, and memory requirements of a run.

    The estimate uses the real model and optimizer without allocating memory. Sizes are in bytes per GPU. The required
    GPU memory is about the sum of all sizes, plus memory for the framework's own buffers. For this sum, multiply each
    per-sample size by the number of samples in a micro-batch.
    """

    parameters: int
    """The number of trained parameters."""
    parameter_bytes: int
    gradient_bytes: int
    """The number of bytes that each step all-reduces."""
    optimizer_bytes: int
    """The size of AdamW's moments."""
    flops_per_sample: int
    """The FLOPs of the matrix products and convolutions in the forward and backward passes.

    A multiply-add counts as two FLOPs.
    """
    precision: str
    """The compute dtype. Only A100, L4, and newer GPUs support bfloat16. Other GPUs compute in float32."""
    weight_copy_bytes: int
    """The size of the weight copies in `precision`. GPUs that compute in float32 don't need copies."""
    activation_bytes_per_sample: int
    """The estimated size of the activations stored for the backward pass, if the GPU computes in `precision`."""
    activation_bytes_per_sample_float32: int
    """The estimated size of the activations stored for the backward pass, if the GPU computes in float32."""
    global_batch: int
    """The number of samples per step, across all GPUs."""
    micro_batches: int
    """The number of micro-batches per step on each GPU."""

    def to_json(self) -> str:
        """Return the estimate as one line of JSON, without a newline."""
        return json.dumps(asdict(self))


def describe(config: StrategyFlags, example: Batch) -> ResourceEstimate:
    """Estimate the resource requirements of a single-sample training step, based only on tensor shapes.

    Raises:
        TrainerError: if the model can't be built from the flags and the data.
    """
    net, flops = forward_backward(config, example)
    optimizer = new_optimizer(config, net)
    optimizer.step()
    moments = [value for state in optimizer.state.values() for value in state.values()]
    precision = torch.float32 if config.precision == "float32" else LOW
    copies, activations = kept_bytes(config, example, precision)
    return ResourceEstimate(
        parameters=sum(p.numel() for p in net.parameters()),
        parameter_bytes=total_bytes(net.parameters()),
        gradient_bytes=total_bytes(p.grad for p in net.parameters() if p.grad is not None),
        optimizer_bytes=total_bytes(value for value in moments if value.ndim),  # step counts aren't moments
        flops_per_sample=flops,
        precision=str(precision).removeprefix("torch."),
        weight_copy_bytes=copies,
        activation_bytes_per_sample=activations,
        activation_bytes_per_sample_float32=kept_bytes(config, example, torch.float32)[1],
        global_batch=config.global_batch,
        micro_batches=config.micro_batches,
    )


def flops_per_sample(config: Config, example: Batch) -> int:
    """Return the FLOPs of the matrix products and convolutions in the forward and backward passes for one sample."""
    return forward_backward(config, example)[1]


def forward_backward(config: Config, example: Batch) -> tuple[nn.Module, int]:
    """Run the forward and backward passes for one sample on tensors without storage.

    Returns the model and the FLOPs of both passes.
    """
    with torch.device("meta"), FlopCounterMode(display=False) as counter:
        net = model.build(config, example)
        sample = Batch(*(torch.from_numpy(array).to("meta") for array in example))
        model.losses(net(sample.inputs), sample).sum().backward()
    return net, counter.get_total_flops()


def kept_bytes(config: StrategyFlags, example: Batch, precision: torch.dtype) -> tuple[int, int]:
    """Return the sizes, in bytes, of the weight copies and of the activations that one sample's backward pass requires.

    Fake CPU kernels store the same tensors as GPU kernels do. Attention stores its inputs and output, but not its
    scores.
    """
    one, two = (_kept_bytes(config, example, precision, samples) for samples in (1, 2))
    return 2 * one - two, two - one


def _kept_bytes(config: StrategyFlags, example: Batch, precision: torch.dtype, samples: int) -> int:
    several = [torch.from_numpy(array).repeat(samples, *[1] * (array.ndim - 1)) for array in example]
    kept = Kept()
    with FakeTensorMode() as mode:
        net: Any = model.build(config, example)
        for block in net.blocks if config.recompute else ():
            block.register_forward_pre_hook(kept.enter)
            block.register_forward_hook(kept.leave)
        batch = Batch(*map(mode.from_tensor, several))
        with saved_tensors_hooks(kept.keep, lambda tensor: tensor):
            with torch.autocast("cpu", precision, enabled=precision != torch.float32):
                output = net(batch.inputs)
            model.losses(output, batch).sum()
    return kept.total(net.parameters())


class Kept:
    """The storages of the tensors that the forward pass saves for the backward pass.

    Several tensors can be views of the same storage.
    """

    def __init__(self) -> None:
        self._all: set[torch.UntypedStorage] = set()
        self._of_each: list[set[torch.UntypedStorage]] = []  # for each recomputed block
        self._now = self._all

    def keep(self, tensor: Tensor) -> Tensor:
        self._now.add(tensor.untyped_storage())
        return tensor

    def enter(self, block: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        """Begin a block whose activations are recomputed from its inputs."""
        self._now.update(tensor.untyped_storage() for tensor in inputs)
        self._of_each.append(set())
        self._now = self._of_each[-1]

    def leave(self, *_: Any) -> None:
        self._now = self._all

    def total(self, parameters: Iterable[Tensor]) -> int:
        """Return the total size of all storages, in bytes, excluding parameters.

        Only one recomputed block is in memory at a time.
        """
        all_through = self._all - (stored := {p.untyped_storage() for p in parameters})
        of_each = (sum(storage.nbytes() for storage in block - all_through - stored) for block in self._of_each)
        return sum(storage.nbytes() for storage in all_through) + max(of_each, default=0)


def total_bytes(tensors: Iterable[Tensor]) -> int:
    return sum(tensor.nbytes for tensor in tensors)

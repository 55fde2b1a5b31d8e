"""Estimate of the resources of a run, measured on tensors without storage: no GPU, no weights, a second or two."""

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
    """Counts, and bytes on one GPU, all from the model and the optimizer as they are; nothing is allocated for it.

    On a GPU, memory is about the sum of all the bytes here, those per sample times the samples of one micro-batch.
    A framework's own buffers come on top.
    """

    parameters: int
    """Trained parameters."""
    parameter_bytes: int
    gradient_bytes: int
    """Bytes that each step all-reduces."""
    optimizer_bytes: int
    """Moments of AdamW."""
    flops_per_sample: int
    """Floating point operations of matrix products and convolutions, forward and backward, a multiply-add being two."""
    precision: str
    """Compute dtype of GPUs that have it: bfloat16 from A100 and L4 on; the other GPUs compute in float32."""
    weight_copy_bytes: int
    """Copies of weights in `precision`; GPUs that compute in float32 need none."""
    activation_bytes_per_sample: int
    """Estimate of the tensors that the forward pass keeps for the backward pass, in `precision`."""
    activation_bytes_per_sample_float32: int
    """Likewise where the GPU computes in float32."""
    global_batch: int
    """Samples of one step, over all GPUs."""
    micro_batches: int
    """Micro-batches of one step, on each GPU."""

    def to_json(self) -> str:
        """Return one line, without a line end."""
        return json.dumps(asdict(self))


def describe(config: StrategyFlags, example: Batch) -> ResourceEstimate:
    """One step of the real model, its loss and the real optimizer with a single sample, on shapes alone.

    Raises:
        TrainerError: the flags and the data give no model.
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
        optimizer_bytes=total_bytes(value for value in moments if value.ndim),  # counts of steps are none
        flops_per_sample=flops,
        precision=str(precision).removeprefix("torch."),
        weight_copy_bytes=copies,
        activation_bytes_per_sample=activations,
        activation_bytes_per_sample_float32=kept_bytes(config, example, torch.float32)[1],
        global_batch=config.global_batch,
        micro_batches=config.micro_batches,
    )


def flops_per_sample(config: Config, example: Batch) -> int:
    """Floating point operations of matrix products and convolutions, forward and backward."""
    return forward_backward(config, example)[1]


def forward_backward(config: Config, example: Batch) -> tuple[nn.Module, int]:
    """The model after both passes of a sample, on shapes alone, and their floating point operations."""
    with torch.device("meta"), FlopCounterMode(display=False) as counter:
        net = model.build(config, example)
        sample = Batch(*(torch.from_numpy(array).to("meta") for array in example))
        model.losses(net(sample.inputs), sample).sum().backward()
    return net, counter.get_total_flops()


def kept_bytes(config: StrategyFlags, example: Batch, precision: torch.dtype) -> tuple[int, int]:
    """Return what the backward pass finds in memory besides the weights: bytes of their copies, bytes of each sample.

    A fake CPU runs kernels that keep what those of a GPU keep; of attention the inputs and the result, not the scores.
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
    """Tensors that the forward pass keeps, as storages, since many tensors may be views of one."""

    def __init__(self) -> None:
        self._all: set[torch.UntypedStorage] = set()
        self._of_each: list[set[torch.UntypedStorage]] = []  # of the blocks that are computed again
        self._now = self._all

    def keep(self, tensor: Tensor) -> Tensor:
        self._now.add(tensor.untyped_storage())
        return tensor

    def enter(self, block: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        """Begin a block that is computed again, from its inputs."""
        self._now.update(tensor.untyped_storage() for tensor in inputs)
        self._of_each.append(set())
        self._now = self._of_each[-1]

    def leave(self, *_: Any) -> None:
        self._now = self._all

    def total(self, parameters: Iterable[Tensor]) -> int:
        """Bytes besides the parameters; of the blocks that are computed again, one is there at a time."""
        all_through = self._all - (stored := {p.untyped_storage() for p in parameters})
        of_each = (sum(storage.nbytes() for storage in block - all_through - stored) for block in self._of_each)
        return sum(storage.nbytes() for storage in all_through) + max(of_each, default=0)


def total_bytes(tensors: Iterable[Tensor]) -> int:
    return sum(tensor.nbytes for tensor in tensors)

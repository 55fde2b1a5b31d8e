"""The model spread over the mesh, and what the training loop asks of every strategy.

In all of them but one every process computes all layers; pipeline.py has the other one.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import parallelize_module
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from trainer.config import Config
from trainer.data import NO_LABEL, Batch, micro_batches
from trainer.horovod import HorovodParallel
from trainer.model import TENSOR_PARTS, VisionTransformer
from trainer.parallelism import SHARDED
from trainer.processes import World

PRECISION = torch.bfloat16  # of the forward pass, on GPUs that have it; weights and gradients stay float32


class Strategy(Protocol):
    """A model that is spread over the world."""

    def backward(self, batch: Batch) -> Tensor:
        """This process's share of a step's samples -> gradients of the mean loss of the whole global batch.

        Returns the sums of loss, correct answers and samples, shape (3,); their ratios hold when summed over the world.
        """
        ...

    def score(self, batch: Batch) -> Tensor:
        """The same sums, without gradients."""
        ...


def precision(config: Config, device: torch.device) -> torch.dtype:
    """What the forward pass computes in; bfloat16 by itself only on GPUs that have it, from A100 and L4 on."""
    if config.precision == "auto":
        has_it = device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
        return PRECISION if has_it else torch.float32
    return {"float32": torch.float32, "bfloat16": torch.bfloat16}[config.precision]


class Whole:
    """Every process computes all layers."""

    def __init__(self, config: Config, net: VisionTransformer, world: World) -> None:
        self._config, self._world = config, world
        self._autocast = autocast(config, world)
        if config.strategy == "tensor":
            for block in net.blocks:
                parallelize_module(block, world.mesh["tensor"], TENSOR_PARTS)
        change_blocks(config, net.blocks)
        self._call: nn.Module = net
        if config.strategy in SHARDED:
            shard(config, net, world)
        else:
            self._call = (HorovodParallel if config.strategy == "horovod" else replicate)(net.to(world.device))

    def backward(self, batch: Batch) -> Tensor:
        totals = torch.zeros(3, device=self._world.device)
        parts = micro_batches(batch, self._config.micro_batches)
        for i, part in enumerate(parts):
            # Gradients are averaged over the mesh once, with the last part.
            with synchronized(self._call, i == len(parts) - 1):
                loss, sums = self._score(part)
                # The mean over the mesh divides by the number of shares; these may differ by a sample.
                (loss * self._world.data_size / self._config.global_batch).backward()
            totals += sums
        return totals

    @torch.no_grad()
    def score(self, batch: Batch) -> Tensor:
        return self._score(batch)[1]

    def _score(self, batch: Batch) -> tuple[Tensor, Tensor]:
        images, labels = tensors(batch, self._world)
        with self._autocast():
            logits = self._call(images)
        loss = summed_loss(logits, labels)
        return loss, sums_of(loss, logits, labels)


def autocast(config: Config, world: World) -> Callable[[], torch.autocast]:
    """Matrix products in low precision; with shards, which cast what they gather, this is off."""
    low = precision(config, world.device)
    enabled = low != torch.float32 and config.strategy not in SHARDED
    return partial(torch.autocast, world.device.type, PRECISION, enabled=enabled)


def change_blocks(config: Config, blocks: nn.Sequential) -> None:
    """Make the blocks recompute, compile, or neither."""
    for block in blocks:
        if config.recompute:
            block.forward = partial(checkpoint, block.forward, use_reentrant=False)  # type: ignore[method-assign]
        if config.compile:
            block.compile()


def replicate(net: nn.Module) -> DistributedDataParallel:
    """The model, its gradients averaged over the world.

    64 MB buckets: fewer, larger all-reduces are what Reduction Server and the 100 Gbps network want.
    Source: Vertex AI documentation, "Distributed training", mid 2026.
    """
    return DistributedDataParallel(net, bucket_cap_mb=64, gradient_as_bucket_view=True)


def shard(config: Config, net: VisionTransformer, world: World) -> None:
    """Cut parameters, and with them gradients and moments, along `shard`; they are copied along `replicate`, if any.

    A block at a time: while one computes, the weights of the next are gathered. Low precision halves what is gathered;
    gradients are summed in float32, since small ones would vanish among many processes.
    """
    low = precision(config, world.device)
    policy = MixedPrecisionPolicy(param_dtype=low, reduce_dtype=torch.float32)
    names = tuple(name for name in world.mesh.mesh_dim_names or () if name != "tensor")
    wrap = partial(fully_shard, mesh=world.mesh[names], mp_policy=policy, reshard_after_forward=config.reshard)
    for block in net.blocks:
        wrap(block)
    wrap(net)


@contextmanager
def synchronized(call: nn.Module, last: bool) -> Iterator[None]:
    """Gradients stay this process's own, unless it is the last micro-batch."""
    if isinstance(call, FSDPModule):
        call.set_requires_gradient_sync(last)
        yield
    elif isinstance(call, DistributedDataParallel | HorovodParallel) and not last:
        with call.no_sync():
            yield
    else:
        yield


def tensors(batch: Batch, world: World) -> tuple[Tensor, Tensor]:
    images, labels = torch.from_numpy(batch.images), torch.from_numpy(batch.labels)
    return images.to(world.device, non_blocking=True), labels.to(world.device, non_blocking=True)


def summed_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """Over the samples; those labelled NO_LABEL count for nothing."""
    return cross_entropy(logits.float(), labels, reduction="sum", ignore_index=NO_LABEL)


def sums_of(loss: Tensor, logits: Tensor, labels: Tensor) -> Tensor:
    """The sums of loss, correct answers and samples, shape (3,), without gradients."""
    correct = (logits.argmax(dim=1) == labels).sum()
    return torch.stack((loss.detach(), correct, (labels != NO_LABEL).sum()))


@torch.no_grad()
def clip(net: nn.Module, limit: float, world: World) -> None:
    """Scale the gradients so that their norm over the whole model, wherever its parts are, is at most `limit`.

    The sum of squares is taken in float64, so that it does not depend on how the model is cut.
    """
    gradients = [p.grad for p in net.parameters() if p.grad is not None]
    mine = [g.to_local() if isinstance(g, DTensor) else g for g in gradients]
    # Each process counts what it holds, divided by the number of processes that hold the same.
    squares = [
        torch.linalg.vector_norm(local, dtype=torch.float64).square() / world.copies(gradient)
        for local, gradient in zip(mine, gradients, strict=True)
    ]
    norm = world.sum(torch.stack(squares).sum()).sqrt()
    torch._foreach_mul_(mine, (limit / norm).clamp(max=1).float())

"""The model parallelized over the mesh, and what the training loop asks of every strategy.

In all strategies but one every process runs all layers; pipeline.py has the other one.
"""

import os
import shutil
import sys
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import parallelize_module
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from trainer import loss
from trainer.config import Config
from trainer.data import Batch, micro_batches
from trainer.errors import TrainerError
from trainer.horovod import HorovodParallel
from trainer.parallelism import SHARDED
from trainer.processes import World


class Strategy(Protocol):
    """A model that is parallelized over the processes of the world."""

    def backward(self, batch: Batch) -> Tensor:
        """This process's share of a step's samples -> gradients of the mean loss of the whole global batch.

        Returns the sums of loss, correct answers and samples, shape (3,); their ratios hold when summed over the world.
        """
        ...

    def score(self, batch: Batch) -> Tensor:
        """The same sums, without gradients."""
        ...


# The attributes that a strategy needs of a model; model.py describes them.
NEEDS = {
    "fsdp": ("blocks",),
    "hsdp": ("blocks",),
    "pipeline": ("embed", "blocks", "head"),
    "tensor": ("blocks", "heads", "tensor_parts"),
}


def require_parts(config: Config, net: nn.Module) -> None:
    """Raises TrainerError if the model lacks an attribute that the flags need."""
    wanted = NEEDS.get(config.strategy, ("blocks",) if config.recompute or config.compile else ())
    if missing := [name for name in wanted if not hasattr(net, name)]:
        flag = f"--strategy {config.strategy}" if config.strategy in NEEDS else "--recompute or --compile"
        raise TrainerError(
            f"{flag} needs a model with {', '.join(wanted)}; that of trainer/model.py lacks {missing[0]}"
        )


def require_compiler() -> None:
    """Raises TrainerError where --compile cannot work: what PyTorch writes is C++ for CPUs, and for GPUs partly C."""
    compiler = os.environ.get("CXX", "clang++" if sys.platform == "darwin" else "g++")  # as PyTorch looks for it
    headers = Path(sysconfig.get_path("include"), "Python.h")
    missing = [name for name, found in ((compiler, shutil.which(compiler)), (headers, headers.exists())) if not found]
    if missing:
        raise TrainerError(
            f"--compile needs a C++ compiler and Python's headers, and there is no {missing[0]}; "
            "on Debian and Ubuntu: apt-get install g++ python3-dev"
        )


class DataParallel:
    """Every process runs all layers, or its shard of each, on its share of the samples; gradients are averaged."""

    def __init__(self, config: Config, net: Any, world: World) -> None:
        self._config, self._world = config, world
        if config.strategy == "tensor":
            for block in net.blocks:
                parallelize_module(block, world.mesh["tensor"], net.tensor_parts)
        apply_compile_and_recompute(config, net)
        self._call: nn.Module = net
        if config.strategy in SHARDED:
            shard(config, net, world)
        else:
            self._call = (HorovodParallel if config.strategy == "horovod" else replicate)(net.to(world.device))

    def backward(self, batch: Batch) -> Tensor:
        totals = torch.zeros(3, device=self._world.device)
        parts = micro_batches(batch, self._config.micro_batches)
        for i, part in enumerate(parts):
            # Gradients are all-reduced over the mesh once, with the last part.
            with synchronized(self._call, i == len(parts) - 1):
                summed, counts = self._score(part)
                # The mean over the mesh divides by the number of shares; these may differ by a sample.
                (summed * self._world.data_size / self._config.global_batch).backward()
            totals += counts
        return totals

    @torch.no_grad()
    def score(self, batch: Batch) -> Tensor:
        return self._score(batch)[1]

    def _score(self, batch: Batch) -> tuple[Tensor, Tensor]:
        images, labels = loss.tensors(batch, self._world.device)
        # Shards are cast when they are gathered, and activations with them.
        with nullcontext() if self._config.strategy in SHARDED else loss.autocast(self._config, self._world.device):
            logits = self._call(images)
        summed = loss.summed(logits, labels)
        return summed, loss.totals(summed, logits, labels)


def apply_compile_and_recompute(config: Config, net: Any) -> None:
    """Make the blocks compile, recompute, or neither."""
    for block in net.blocks if config.recompute or config.compile else ():
        # In this order: the compiler would leave a block that recomputes as it is, or fail on one that is split.
        if config.compile:
            block.forward = torch.compile(block.forward)
        if config.recompute:
            block.forward = partial(checkpoint, block.forward, use_reentrant=False)


def replicate(net: nn.Module) -> DistributedDataParallel:
    """The model, its gradients averaged over the world.

    64 MB buckets: fewer, larger all-reduces are what Reduction Server and the 100 Gbps network want.
    Source: Vertex AI documentation, "Distributed training", mid 2026.
    """
    return DistributedDataParallel(net, bucket_cap_mb=64, gradient_as_bucket_view=True)


def shard(config: Config, net: Any, world: World) -> None:
    """Cut parameters, and with them gradients and moments, along `shard`; they are copied along `replicate`, if any.

    A block at a time: while one computes, the weights of the next are gathered. Low precision halves what is gathered;
    gradients are all-reduced in float32, since small ones would vanish among many processes.
    """
    policy = MixedPrecisionPolicy(param_dtype=loss.precision(config, world.device), reduce_dtype=torch.float32)
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


@torch.no_grad()
def clip(net: nn.Module, limit: float, world: World) -> Tensor:
    """Scale the gradients so that their norm over the whole model, wherever its parts are, is at most `limit`.

    Returns the norm that they had; its squares are summed in float64, so that the cut of the model does not change it.
    """
    gradients = [p.grad for p in net.parameters() if p.grad is not None]
    mine = [g.to_local() if isinstance(g, DTensor) else g for g in gradients]
    norms = torch._foreach_norm(mine, dtype=torch.float64)
    squares = torch._foreach_mul(norms, norms)
    copies = [world.copies(gradient) for gradient in gradients]
    if all(count == world.size for count in copies):  # each process holds them all: nobody need be asked
        square = torch.stack(squares).sum()
    else:
        # Each process counts what it holds, divided by the number of processes that hold the same.
        square = world.sum(torch.stack(torch._foreach_div(squares, copies)).sum())
    norm = square.sqrt()
    torch._foreach_mul_(mine, (limit / norm).clamp(max=1).float())
    return norm

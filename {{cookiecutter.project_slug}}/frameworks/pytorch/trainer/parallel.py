"""The strategies: a model in, the same model over all processes of the run out."""

import shutil
import sys
import sysconfig
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import parallelize_module
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from trainer import horovod, meshes, model
from trainer.config import Config
from trainer.data import Batch
from trainer.errors import TrainerError
from trainer.horovod import HorovodParallel
from trainer.meshes import Mesh
from trainer.parallelism import SHARDED
from trainer.precision import precision
from trainer.processes import World

# The attributes that a strategy needs of a model; model.py describes them.
NEEDS = {
    "fsdp": ("blocks",),
    "hsdp": ("blocks",),
    "pipeline": ("embed", "blocks", "head"),
    "tensor": ("blocks", "heads", "tensor_parts"),
}


class Scheduled(nn.Module):
    """A model that is not simply called in training: its schedule takes the batch through forward and backward pass.

    Called, it returns the model's output, or None in the processes that do not see it.
    """

    module: nn.Module  # this process's part of the model
    holders: Mapping[nn.Parameter, int]  # processes of one copy of the model that hold a parameter, where several do

    def forward_backward(self, batch: Batch) -> Tensor | None:
        """Add the gradients of the sum of losses, divided by the global batch and all-reduced; returns the output."""
        raise NotImplementedError


def parallelize(config: Config, net: Any, world: World) -> nn.Module:
    """The model over the processes of the world; `net` itself then keeps only this process's parameters."""
    if config.strategy == "pipeline":
        from trainer.pipeline import Pipeline  # brings PyTorch's compiler along, which takes a second

        return Pipeline(config, net, world)
    if config.strategy == "tensor":
        for block in net.blocks:
            parallelize_module(block, world.along("tensor"), net.tensor_parts)
    apply_compile_and_recompute(config, net)
    if config.strategy in SHARDED:
        return shard(config, net, world)
    return (HorovodParallel if config.strategy == "horovod" else replicate)(net.to(world.device))


def replicate(net: nn.Module) -> DistributedDataParallel:
    """The model, its gradients averaged over the world.

    64 MB buckets: fewer, larger all-reduces are what Reduction Server and the 100 Gbps network want.
    Source: Vertex AI documentation, "Distributed training", mid 2026.
    """
    return DistributedDataParallel(net, bucket_cap_mb=64, gradient_as_bucket_view=True)


def shard(config: Config, net: Any, world: World) -> nn.Module:
    """Cut parameters, and with them gradients and moments, along `shard`; they are copied along `replicate`, if any.

    A block at a time: while one computes, the weights of the next are gathered. Low precision halves what is gathered;
    gradients are all-reduced in float32, since small ones would vanish among many processes.
    """
    policy = MixedPrecisionPolicy(param_dtype=precision(config, world.device), reduce_dtype=torch.float32)
    mesh = world.along(*(name for name in world.dimensions if name != "tensor"))
    wrap = partial(fully_shard, mesh=mesh, mp_policy=policy, reshard_after_forward=config.reshard)
    for block in net.blocks:
        wrap(block)
    wrap(net)
    return cast(nn.Module, net)


def apply_compile_and_recompute(config: Config, net: Any) -> None:
    """Make the blocks compile, recompute, or neither."""
    for block in net.blocks if config.recompute or config.compile else ():
        # In this order: the compiler would leave a block that recomputes as it is, or fail on one that is split.
        if config.compile:
            block.forward = torch.compile(block.forward)
        if config.recompute:
            block.forward = partial(checkpoint, block.forward, use_reentrant=False)


def bare(net: nn.Module) -> nn.Module:
    """This process's part of the model, without what a strategy has wrapped around it."""
    return net.module if isinstance(net, DistributedDataParallel | HorovodParallel | Scheduled) else net


@contextmanager
def sync_gradients(net: nn.Module, last: bool) -> Iterator[None]:
    """Gradients of a backward pass in this block stay this process's own, unless it is the last micro-batch's."""
    if isinstance(net, FSDPModule):
        net.set_requires_gradient_sync(last)
        yield
    elif isinstance(net, DistributedDataParallel | HorovodParallel) and not last:
        with net.no_sync():
            yield
    else:
        yield


@torch.no_grad()
def clip_gradients(net: nn.Module, limit: float, world: World) -> Tensor:
    """Scale the gradients so that their norm over the whole model, wherever its parts are, is at most `limit`.

    Returns the norm that they had; its squares are summed in float64, so that the cut of the model does not change it.
    """
    found = {p: p.grad for p in net.parameters() if p.grad is not None}
    gradients = list(found.values())
    mine = [g.to_local() if isinstance(g, DTensor) else g for g in gradients]
    norms = torch._foreach_norm(mine, dtype=torch.float64)
    squares = torch._foreach_mul(norms, norms)
    holders = net.holders if isinstance(net, Scheduled) else {}
    copies = [world.copies(gradient) * holders.get(p, 1) for p, gradient in found.items()]
    if all(count == world.size for count in copies):  # each process holds them all: nobody need be asked
        square = torch.stack(squares).sum()
    else:
        # Each process counts what it holds, divided by the number of processes that hold the same.
        square = world.sum(torch.stack(torch._foreach_div(squares, copies)).sum())
    norm = square.sqrt()
    torch._foreach_mul_(mine, (limit / norm).clamp(max=1).float())
    return norm


def mesh(config: Config, machines: int, example: Batch, compiler: str) -> Mesh:
    """How the processes of so many machines lie; raises TrainerError if the flags, machines or model forbid it.

    Args:
        compiler: the name of the C++ compiler; empty for PyTorch's own choice.
    """
    if config.strategy == "horovod":
        horovod.check()
    if config.compile:
        require_compiler(compiler)
    blocks = heads = 0
    if wanted := needed_parts(config):
        with torch.device("meta"):  # shapes alone
            net: Any = model.build(config, example)
        require_parts(config, net, wanted)
        blocks, heads = len(net.blocks), getattr(net, "heads", 0)
    return meshes.mesh(config, machines, meshes.processes(config, torch.cuda.device_count()), blocks, heads)


def needed_parts(config: Config) -> tuple[str, ...]:
    """The attributes that a model must have for these flags."""
    return NEEDS.get(config.strategy, ("blocks",) if config.recompute or config.compile else ())


def require_parts(config: Config, net: nn.Module, wanted: tuple[str, ...]) -> None:
    """Raises TrainerError if the model lacks an attribute that the flags need."""
    if missing := [name for name in wanted if not hasattr(net, name)]:
        flag = f"--strategy {config.strategy}" if config.strategy in NEEDS else "--recompute or --compile"
        raise TrainerError(
            f"{flag} needs a model with {', '.join(wanted)}; that of trainer/model.py lacks {missing[0]}"
        )


def require_compiler(name: str) -> None:
    """Raises TrainerError where --compile cannot work: what PyTorch writes is C++ for CPUs, and for GPUs partly C."""
    compiler = name or ("clang++" if sys.platform == "darwin" else "g++")  # as PyTorch looks for it
    headers = Path(sysconfig.get_path("include"), "Python.h")
    missing = [name for name, found in ((compiler, shutil.which(compiler)), (headers, headers.exists())) if not found]
    if missing:
        raise TrainerError(
            f"--compile needs a C++ compiler and Python's headers, and there is no {missing[0]}; "
            "on Debian and Ubuntu: apt-get install g++ python3-dev"
        )

"""A model in, the same model over all processes of the run out; and what the loop asks of it there."""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from trainer import strategies
from trainer.config import Config
from trainer.data import Batch
from trainer.processes import World


class Wrapped(nn.Module):
    """A model within a strategy's own module, as DistributedDataParallel has it."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module  # this process's part of the model

    def no_sync(self) -> AbstractContextManager[None]:
        """Gradients of a backward pass in this block are only added up."""
        return nullcontext()


class Scheduled(Wrapped):
    """A model that is not simply called in training: its schedule takes the batch through forward and backward pass.

    Called, it returns the model's output, or None in the processes that do not see it.
    """

    holders: Mapping[nn.Parameter, int]  # processes of one copy of the model that hold a parameter, where several do

    def forward_backward(self, batch: Batch) -> Tensor | None:
        """Add the gradients of the sum of losses, divided by the global batch and all-reduced; returns the output."""
        raise NotImplementedError


def parallelize(config: Config, net: nn.Module, world: World) -> nn.Module:
    """The model over the processes of the world; `net` itself then keeps only this process's parameters."""
    return strategies.load(config.strategy).parallelize(config, net, world)


def apply_compile_and_recompute(config: Config, net: Any) -> None:
    """Make the blocks compile, recompute, or neither."""
    if config.compile:
        # Else it cuts each block where a bucket of DistributedDataParallel ends. The blocks are parts enough: their
        # gradients are all-reduced one by one while those of earlier blocks are computed.
        torch._dynamo.config.optimize_ddp = False
    for block in net.blocks if config.recompute or config.compile else ():
        # In this order: the compiler would leave a block that recomputes as it is, or fail on one that is split.
        if config.compile:
            block.forward = torch.compile(block.forward)
        if config.recompute:
            block.forward = partial(checkpoint, block.forward, use_reentrant=False)


def bare(net: nn.Module) -> nn.Module:
    """This process's part of the model, without what a strategy has wrapped around it."""
    return net.module if isinstance(net, DistributedDataParallel | Wrapped) else net


@contextmanager
def sync_gradients(net: nn.Module, last: bool) -> Iterator[None]:
    """Gradients of a backward pass in this block stay this process's own, unless it is the last micro-batch's.

    With FSDP they are cut after each: until the last, a process would keep those of the whole model. What waits is the
    all-reduce between copies of the model.
    """
    if isinstance(net, FSDPModule):
        net.set_requires_all_reduce(last)
        yield
    elif isinstance(net, DistributedDataParallel | Wrapped) and not last:
        with net.no_sync():
            yield
    else:
        yield


def communication(net: nn.Module) -> dict[str, float]:
    """Seconds of the newest step in which this process has only communicated or waited for others.

    As DistributedDataParallel times it; empty for other strategies, and before it has timed a step. At the last step,
    which need not be among those that are timed, they are of the newest one that is.
    """
    if not isinstance(net, DistributedDataParallel) or not net.logger:
        return {}
    net.logger.set_runtime_stats_and_log()  # else the forward pass of the next step would do so
    timed = net._get_ddp_logging_data()
    if "backward_comm_time" not in timed:
        return {}
    nanoseconds = int(timed["backward_comm_time"]) - int(timed["backward_compute_comm_overlap_time"])
    return {"communication_seconds": nanoseconds / 1e9}


@torch.no_grad()
def clip_gradients(net: nn.Module, limit: float, world: World) -> Tensor:
    """Scale the gradients so that their norm over the whole model, wherever its parts are, is at most `limit`.

    Returns the norm that they had; its squares are summed in float64, so that the cut of the model does not change it.
    """
    found = {p: p.grad for p in net.parameters() if p.grad is not None}
    mine = [g.to_local() if isinstance(g, DTensor) else g for g in found.values()]
    holders = net.holders if isinstance(net, Scheduled) else {}
    by_copies = defaultdict[int, list[Tensor]](list)
    for (parameter, gradient), part in zip(found.items(), mine, strict=True):
        by_copies[world.copies(gradient) * holders.get(parameter, 1)].append(part)
    if [*by_copies] == [world.size]:  # each process holds them all: nobody need be asked
        square = sum_of_squares(mine)
    else:
        # Each process counts what it holds, divided by the number of processes that hold the same.
        parts = [sum_of_squares(held) / copies for copies, held in by_copies.items()]
        square = world.sum(torch.stack(parts).sum())
    norm = square.sqrt()
    torch._foreach_mul_(mine, (limit / norm).clamp(max=1).float())
    return norm


def sum_of_squares(gradients: list[Tensor]) -> Tensor:
    """Of all their numbers, in float64."""
    if all(gradient.device.type == "cpu" for gradient in gradients):
        # In float64 throughout it would take far longer, in float32 it would round otherwise where FSDP has cut a
        # gradient: between its rows. So the norm of a row is taken in float32, and the sum over the rows in float64.
        rows = [torch.linalg.vector_norm(g, dim=-1) if g.ndim > 1 else g for g in gradients]
        norms = torch.cat([row.flatten() for row in rows]).double()
    else:
        norms = torch.stack(torch._foreach_norm(gradients, dtype=torch.float64))
    return norms.square().sum()

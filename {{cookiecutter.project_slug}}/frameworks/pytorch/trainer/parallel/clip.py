"""Clipping by the norm of all gradients, wherever their parts are."""

import math
from collections import defaultdict
from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from trainer.cluster.world import World


@torch.no_grad()
def clip_gradients(net: nn.Module, limit: float, world: World, holders: Mapping[nn.Parameter, int] = {}) -> Tensor:
    """Scale the gradients so that their norm over the whole model is at most `limit`; returns the norm that they had.

    Squares are summed in float64, so that the norm does not depend on where the model is cut.

    Args:
        holders: number of stages that hold a parameter, where several do.
    """
    by_count, local = defaultdict[int, list[Tensor]](list), list[Tensor]()
    for parameter in net.parameters():
        if (gradient := parameter.grad) is not None:
            local.append(gradient.to_local() if isinstance(gradient, DTensor) else gradient)
            by_count[holder_count(gradient, world) * holders.get(parameter, 1)].append(local[-1])
    if [*by_count] == [world.size]:  # each process holds them all: nobody need be asked
        square = sum_of_squares(local)
    else:
        # Each process counts what it holds, divided by the number of processes that hold the same.
        parts = [sum_of_squares(held) / count for count, held in by_count.items()]
        square = world.sum(torch.stack(parts).sum())
    norm = square.sqrt()
    torch._foreach_mul_(local, (limit / norm).clamp(max=1).float())
    return norm


def holder_count(tensor: Tensor, world: World) -> int:
    """Number of processes that hold the same part of a parameter, or of its gradient, as this one."""
    pieces = world.extent("stage")
    if isinstance(tensor, DTensor):
        cut = [not placement.is_replicate() for placement in tensor.placements]
        pieces *= math.prod(size for size, is_cut in zip(tensor.device_mesh.shape, cut, strict=True) if is_cut)
    return world.size // pieces


def sum_of_squares(gradients: list[Tensor]) -> Tensor:
    """Return the sum over all numbers of the gradients, in float64."""
    if all(gradient.device.type == "cpu" for gradient in gradients):
        # Float64 throughout would take far longer; float32 would round otherwise where FSDP has cut a gradient, which
        # is between its rows. So the norm of a row is taken in float32, and the sum over the rows in float64.
        rows = [torch.linalg.vector_norm(g, dim=-1) if g.ndim > 1 else g for g in gradients]
        norms = torch.cat([row.flatten() for row in rows]).double()
    else:
        norms = torch.stack(torch._foreach_norm(gradients, dtype=torch.float64))
    return norms.square().sum()

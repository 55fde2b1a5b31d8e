"""Clips gradients by their global norm, even if they are sharded."""

import math
from collections import defaultdict
from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from trainer.cluster.world import World


@torch.no_grad()
def clip_gradients(net: nn.Module, limit: float, world: World, holders: Mapping[nn.Parameter, int] = {}) -> Tensor:
    """Scale the gradients so that their global norm is at most `limit`. Returns the norm before scaling.

    Squares are summed in float64, so the norm doesn't depend on how the model is split.

    Args:
        holders: the number of pipeline stages that hold each shared parameter.
    """
    by_count, local = defaultdict[int, list[Tensor]](list), list[Tensor]()
    for parameter in net.parameters():
        if (gradient := parameter.grad) is not None:
            local.append(gradient.to_local() if isinstance(gradient, DTensor) else gradient)
            by_count[holder_count(gradient, world) * holders.get(parameter, 1)].append(local[-1])
    if [*by_count] == [world.size]:  # each process holds all gradients, so no communication is needed
        square = sum_of_squares(local)
    else:
        # Each process divides its sum by the number of processes that hold the same part.
        parts = [sum_of_squares(held) / count for count, held in by_count.items()]
        square = world.sum(torch.stack(parts).sum())
    norm = square.sqrt()
    torch._foreach_mul_(local, (limit / norm).clamp(max=1).float())
    return norm


def holder_count(tensor: Tensor, world: World) -> int:
    """Return the number of processes that hold the same shard of a parameter or gradient as this process."""
    pieces = world.extent("stage")
    if isinstance(tensor, DTensor):
        cut = [not placement.is_replicate() for placement in tensor.placements]
        pieces *= math.prod(size for size, is_cut in zip(tensor.device_mesh.shape, cut, strict=True) if is_cut)
    return world.size // pieces


def sum_of_squares(gradients: list[Tensor]) -> Tensor:
    """Return the sum of squares of all gradient values, in float64."""
    if all(gradient.device.type == "cpu" for gradient in gradients):
        # Computing everything in float64 would be much slower. In float32, rounding would depend on how FSDP splits a
        # gradient, which it does between rows. So the norm of a row is in float32, and the sum over rows is in float64.
        rows = [torch.linalg.vector_norm(g, dim=-1) if g.ndim > 1 else g for g in gradients]
        norms = torch.cat([row.flatten() for row in rows]).double()
    else:
        norms = torch.stack(torch._foreach_norm(gradients, dtype=torch.float64))
    return norms.square().sum()

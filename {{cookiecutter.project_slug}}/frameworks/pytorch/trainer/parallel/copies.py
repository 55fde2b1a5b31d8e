"""Comparison of the copies of a model, which lie along `replicate` and get the same gradients, bit for bit.

Along `tensor` each process computes gradients of its own for what all of them hold, which a GPU may round otherwise.
"""

from collections.abc import Iterator

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from trainer.cluster.world import World
from trainer.disagreement import DRAWN, object_to
from trainer.job import Job
from trainer.state import State
from trainer.vertex.errors import TrainerError

INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}  # by bytes
WEIGHTS = 0x9E3779B97F4A7C1, 0x2545F4914F6CDD1  # odd, of rows and of columns


def parted(state: State, net: nn.Module, world: World) -> dict[int, dict[str, int]]:
    """Return the digests of all tensors, by rank, of copies that are not alike; empty if all are.

    Every process must call it. One number a process travels where they are alike.
    """
    count = world.extent("replicate")
    if count == 1:
        return {}
    own = {name: digest(tensor).to(world.device) for name, tensor in held(state, net)}
    total, is_first = digest(torch.stack([*own.values()])), world.along("replicate").get_local_rank() == 0
    if not int(world.sum(total * (count - 1 if is_first else -1))):
        return {}
    of_each, apart = [*enumerate(world.gather({name: int(value) for name, value in own.items()}))], world.size // count
    groups = (dict(of_each[first::apart]) for first in range(apart))
    return next(group for group in groups if any(copy != group[min(group)] for copy in group.values()))


def held(state: State, net: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yield this process's part of each parameter and of its moments; buffers may differ, as those of BatchNorm."""
    for name, parameter in net.named_parameters():
        moments = {f"{name}.{moment}": value for moment, value in state.optimizer.state.get(parameter, {}).items()}
        for key, tensor in {name: parameter, **moments}.items():
            local = tensor.to_local() if isinstance(tensor, DTensor) else tensor
            if isinstance(local, Tensor) and local.numel():
                yield key, local.detach()


def require_same_buffers(job: Job, net: nn.Module, world: World) -> None:
    """Compare the buffers of all processes' new models, which need not be part of their state dicts.

    Every process must call it. Raises TrainerError where they differ, unless the run is to go on anyway.
    """
    of_each = world.gather({name: int(digest(buffer)) for name, buffer in net.named_buffers() if buffer.numel()})
    for rank, own in enumerate(of_each):
        if names := sorted(name for name in own.keys() | of_each[0] if own.get(name) != of_each[0].get(name)):
            one, other = (job.cluster.process(number, world.size) for number in (rank, 0))
            fault = f"{names[0]} of the model of {one} is another one than in {other}"
            object_to(job, fault, TrainerError(f"{fault}; {DRAWN}"))


def share_buffers(net: nn.Module, world: World) -> None:
    """Give all processes the first one's buffers, such as the means of BatchNorm. Every process must call it."""
    for dimension in ("shard", "replicate"):
        for buffer in net.buffers() if world.extent(dimension) > 1 else ():
            dist.broadcast(buffer, group=world.along(dimension).get_group(), group_src=0)


def digest(tensor: Tensor) -> Tensor:
    """Return the sum of all bit patterns, each times a weight by its row and column: a whole number, which wraps."""
    bits = tensor.view(INTEGERS[tensor.element_size()])
    bits = bits.reshape(-1, bits.shape[-1] if bits.ndim else 1)
    mixed = bits >> 4 * tensor.element_size()  # else two signs that change would cancel out in a sum that wraps
    bits = mixed.bitwise_xor_(bits)
    # Sums as wide as the numbers need no wider copy of them; a running sum weighs each by its place.
    rows, columns = (bits.sum(axis, dtype=bits.dtype).long().cumsum(0).sum() for axis in (1, 0))
    return rows * WEIGHTS[0] + columns * WEIGHTS[1]

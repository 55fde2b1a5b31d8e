"""Copies of the model that differ: whose, in which tensor, and where the run goes on; and models that answer otherwise.

Parameters say nothing about what else a model computes with, such as an order that `build` has drawn. Its answers do.

Along `tensor` each process computes gradients of its own for what all of them hold, which a GPU may round otherwise.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from trainer.cluster.world import World
from trainer.config import Job
from trainer.step.state import State
from trainer.vertex.errors import PeerError, TrainerError

SAMPLES = 32  # whose answers are compared
EXACT, ROUNDED = 1e-3, 2e-2  # largest difference of losses, computed in float32 and in lower precision
DRAWN = "have build() of trainer/model.py draw all from the generators that --seed sets, or keep it in the state dict"
CURE = (
    "if it names the same replica again, replace the machine, or look for code that changes the state outside of the"
    " optimizer; --anyway goes on as it is"
)
INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}  # by bytes
WEIGHTS = 0x9E3779B97F4A7C1, 0x2545F4914F6CDD1  # odd, of rows and of columns


def require_alike(job: Job, step: int, saved: str, names: Sequence[str], copies: Sequence[Mapping[str, int]]) -> None:
    """Name the copies that are not like most of them; all, where no value is that of most.

    Args:
        saved: name of the newest checkpoint; empty if there is none.
        names: of the replica, or process, that holds each copy.
        copies: digest of each tensor, by its name, of each copy.

    Raises:
        PeerError: copies are not alike, unless the run is to go on anyway: then the chief warns.
    """
    tensor = next((name for name, value in copies[0].items() if any(copy[name] != value for copy in copies)), "")
    if not tensor:
        return
    ((usual, count),) = Counter(copy[tensor] for copy in copies).most_common(1)
    most = count * 2 > len(copies)
    odd = [*dict.fromkeys(name for name, copy in zip(names, copies, strict=True) if not most or copy[tensor] != usual)]
    differ = f"{'differs' if len(odd) == 1 else 'differ'} from {'the others' if most else 'one another'}"
    fault = f"after step {step} {' and '.join(odd)} {differ} in {tensor}"
    resume = f"resumes from {saved}" if saved else "begins at the first step"
    said = f"{fault}; nothing is saved, and the next start {resume}: {CURE}"
    job.object_to(fault, PeerError(said, differs=[name.rpartition(" ")[2] for name in odd]))


class Answers(NamedTuple):
    """Losses of the first held-out samples, by which models are compared."""

    losses: Sequence[float]
    tolerance: float = EXACT

    def differ(self, other: Sequence[float]) -> bool:
        """Whether the mean difference, relative to a loss of more than 1, is too large; if both have losses at all."""
        count = min(len(self.losses), len(other))
        own, theirs = np.array(self.losses[:count]), np.array(other[:count])
        differences = np.nan_to_num(np.abs(own - theirs) / (1 + np.abs(own)))
        return bool(differences.size) and float(differences.mean()) > self.tolerance


def repeated(losses: Callable[[], Any], tolerance: float) -> Answers:
    """Return a model's losses; NaNs, which equal all, if it draws numbers in evaluation and so has others each time."""
    first, second = (np.asarray(losses(), np.float32).tolist() for _ in range(2))
    answers = Answers(first, tolerance)
    return Answers([math.nan] * len(first)) if answers.differ(second) else answers


def require_same_answers(job: Job, of_each: Sequence[Answers], names: Sequence[str]) -> Answers:
    """Compare the answers of all processes, or machines, with those of the first that has some; returns the latter.

    Raises:
        TrainerError: they differ, unless the run is to go on anyway: then the chief warns.
    """
    first, name = next((pair for pair in zip(of_each, names, strict=True) if pair[0].losses), (of_each[0], names[0]))
    for answers, other in zip(of_each, names, strict=True):
        if first.differ(answers.losses):
            fault = f"the model of {other} answers otherwise than that of {name}, with the same weights"
            job.object_to(fault, TrainerError(f"{fault}; {DRAWN}"))
    return first


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
            job.object_to(fault, TrainerError(f"{fault}; {DRAWN}"))


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

"""Detects replicas whose parameters have diverged, and models whose losses differ.

Comparing parameters isn't enough, because a model can also use other values, such as a random permutation that `build`
generates. Comparing losses also detects differences in such values.

This module doesn't compare processes along the `tensor` mesh dimension. Each of these processes computes its own
gradients for shared parameters, and GPUs might round them differently.
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

SAMPLES = 32  # the number of samples whose losses are compared
EXACT, ROUNDED = 1e-3, 2e-2  # largest difference between losses, in float32 and in lower precision
DRAWN = (
    "in build() of trainer/model.py, draw all random values from the generators that --seed seeds, or store the values"
    " in the state dict"
)
CURE = (
    "if the same replica diverges again, replace its machine, or find the code that changes the state outside the"
    " optimizer; to continue despite the divergence, use --anyway"
)
INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}  # by size in bytes
WEIGHTS = 0x9E3779B97F4A7C1, 0x2545F4914F6CDD1  # odd weights of rows and columns


def require_no_divergence(
    job: Job, step: int, saved: str, names: Sequence[str], digests: Sequence[Mapping[str, int]]
) -> None:
    """Check that the replicas' tensors are identical.

    The error lists the replicas that differ from the majority. If there is no majority, the error lists all replicas.

    Args:
        saved: the name of the latest checkpoint, or an empty string if no checkpoint exists.
        names: the names of the replicas or processes.
        digests: the digests of all tensors for each replica or process, keyed by tensor name.

    Raises:
        PeerError: if parameters have diverged. If --anyway is set, the chief prints a warning instead.
    """
    tensor = next((name for name, value in digests[0].items() if any(one[name] != value for one in digests)), "")
    if not tensor:
        return
    ((usual, count),) = Counter(one[tensor] for one in digests).most_common(1)
    most = count * 2 > len(digests)
    odd = [*dict.fromkeys(name for name, one in zip(names, digests, strict=True) if not most or one[tensor] != usual)]
    diverged = f"{'has' if len(odd) == 1 else 'have'} diverged from {'the others' if most else 'one another'}"
    fault = f"after step {step}, {' and '.join(odd)} {diverged} in {tensor}"
    resume = f"training resumes from {saved}" if saved else "training begins at the first step"
    said = f"{fault}; this state isn't saved, and after a restart, {resume}; {CURE}"
    job.object_to(fault, PeerError(said, diverged=[name.rpartition(" ")[2] for name in odd]))


class Answers(NamedTuple):
    """The losses of a model on the first held-out samples, for comparison with those of another model."""

    losses: Sequence[float]
    tolerance: float = EXACT

    def differ(self, other: Sequence[float]) -> bool:
        """Return whether the mean relative difference between the losses exceeds the tolerance.

        If losses are missing for either model, return False.
        """
        count = min(len(self.losses), len(other))
        own, theirs = np.array(self.losses[:count]), np.array(other[:count])
        differences = np.nan_to_num(np.abs(own - theirs) / (1 + np.abs(own)))
        return bool(differences.size) and float(differences.mean()) > self.tolerance


def repeated(losses: Callable[[], Any], tolerance: float) -> Answers:
    """Compute a model's losses twice. If both results match, return the first one.

    Otherwise, return NaN values, which match any losses. Losses can't be compared if the model draws random numbers
    during evaluation.
    """
    first, second = (np.asarray(losses(), np.float32).tolist() for _ in range(2))
    answers = Answers(first, tolerance)
    return Answers([math.nan] * len(first)) if answers.differ(second) else answers


def require_same_answers(job: Job, of_each: Sequence[Answers], names: Sequence[str]) -> Answers:
    """Compare the losses of all processes or machines with the first nonempty losses, and return the latter.

    Raises:
        TrainerError: if the losses differ. If --anyway is set, the chief prints a warning instead.
    """
    first, name = next((pair for pair in zip(of_each, names, strict=True) if pair[0].losses), (of_each[0], names[0]))
    for answers, other in zip(of_each, names, strict=True):
        if first.differ(answers.losses):
            fault = f"the model of {other} returns different losses than the model of {name} with the same weights"
            job.object_to(fault, TrainerError(f"{fault}; {DRAWN}"))
    return first


def diverged(state: State, net: nn.Module, world: World) -> dict[int, dict[str, int]]:
    """Return the tensor digests of a diverged group of processes, keyed by rank.

    If no process has diverged, return an empty dictionary.

    Every process must call this function. If no process has diverged, each process sends only one number.
    """
    count = world.extent("replicate")
    if count == 1:
        return {}
    own = {name: digest(tensor).to(world.device) for name, tensor in held(state, net)}
    total, is_first = digest(torch.stack([*own.values()])), world.along("replicate").get_local_rank() == 0
    if not int(world.sum(total * (count - 1 if is_first else -1))):
        return {}
    of_each, stride = [*enumerate(world.gather({name: int(value) for name, value in own.items()}))], world.size // count
    groups = (dict(of_each[first::stride]) for first in range(stride))
    return next(group for group in groups if any(digests != group[min(group)] for digests in group.values()))


def held(state: State, net: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yield this process's shard of each parameter and of the parameter's optimizer moments.

    Buffers are skipped, because some of them, such as BatchNorm's running means, can differ between processes.
    """
    for name, parameter in net.named_parameters():
        moments = {f"{name}.{moment}": value for moment, value in state.optimizer.state.get(parameter, {}).items()}
        for key, tensor in {name: parameter, **moments}.items():
            local = tensor.to_local() if isinstance(tensor, DTensor) else tensor
            if isinstance(local, Tensor) and local.numel():
                yield key, local.detach()


def require_same_buffers(job: Job, net: nn.Module, world: World) -> None:
    """Compare the initial model's buffers across processes, including buffers that aren't in the state dict.

    Every process must call this function. Raises TrainerError if buffers differ, unless --anyway is set.
    """
    of_each = world.gather({name: int(digest(buffer)) for name, buffer in net.named_buffers() if buffer.numel()})
    for rank, own in enumerate(of_each):
        if names := sorted(name for name in own.keys() | of_each[0] if own.get(name) != of_each[0].get(name)):
            one, other = (job.cluster.process(number, world.size) for number in (rank, 0))
            fault = f"the buffer {names[0]} differs between the models of {one} and {other}"
            job.object_to(fault, TrainerError(f"{fault}; {DRAWN}"))


def share_buffers(net: nn.Module, world: World) -> None:
    """Broadcast the first process's buffers, such as BatchNorm's running means, to the other processes.

    Every process must call this function.
    """
    for dimension in ("shard", "replicate"):
        for buffer in net.buffers() if world.extent(dimension) > 1 else ():
            dist.broadcast(buffer, group=world.along(dimension).get_group(), group_src=0)


def digest(tensor: Tensor) -> Tensor:
    """Return an integer digest of a tensor: the sum of all bit patterns, weighted by row and column."""
    tensor = torch.view_as_real(tensor) if tensor.is_complex() else tensor
    bits = tensor.view(INTEGERS[tensor.element_size()])
    bits = bits.reshape(-1, bits.shape[-1] if bits.ndim else 1)
    mixed = bits >> 4 * tensor.element_size()  # otherwise two changed signs would cancel out in the sum
    bits = mixed.bitwise_xor_(bits)
    # Sums in the tensor's own width don't need a wider copy. A cumulative sum weights each value by its position.
    rows, columns = (bits.sum(axis, dtype=bits.dtype).long().cumsum(0).sum() for axis in (1, 0))
    return rows * WEIGHTS[0] + columns * WEIGHTS[1]

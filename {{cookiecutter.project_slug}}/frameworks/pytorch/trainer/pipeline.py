"""The strategy in which each process holds some of the layers: stages, which hand activations on.

The stages of one pipeline lie along `stage` of the mesh. Along `replicate` there are more pipelines, whose gradients
are summed stage by stage.
"""

import functools
from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe, ScheduleInterleaved1F1B

from trainer import strategy
from trainer.config import Config
from trainer.data import Batch
from trainer.meshes import STAGES
from trainer.model import VisionTransformer
from trainer.processes import World

SCHEDULES: dict[str, Any] = {
    "gpipe": ScheduleGPipe,
    "1f1b": Schedule1F1B,
    "interleaved": ScheduleInterleaved1F1B,
}


class Pipeline:
    """A process's stage, or its two if they are interleaved; all other layers leave the model."""

    def __init__(self, config: Config, net: VisionTransformer, world: World) -> None:
        self._net, self._world = net.to(world.device), world
        self._autocast = strategy.autocast(config, world)
        self._first, self._last = world.stage == 0, world.stage == world.stages - 1
        count, parts = world.stages * STAGES[config.schedule], [net.start, *net.blocks, net.end]
        mine = range(world.stage, count, world.stages)
        bounds = [(0 if a == 0 else a + 1, b + 1 + (b == len(net.blocks))) for a, b in cut(net, count)]
        strategy.change_blocks(config, net.blocks)
        stages = [self._stage(nn.Sequential(*parts[slice(*bounds[i])]), i, count) for i in mine]
        drop(net, [part for i in range(count) if i not in mine for part in parts[slice(*bounds[i])]])
        self._schedule = SCHEDULES[config.schedule](
            stages if len(stages) > 1 else stages[0],
            n_microbatches=config.micro_batches,
            loss_fn=lambda logits, labels: strategy.loss(logits, labels) / config.global_batch,
            scale_grads=False,
        )

    def _stage(self, layers: nn.Module, index: int, count: int) -> PipelineStage:
        return PipelineStage(layers, index, count, self._world.device, group=self._world.mesh.get_group("stage"))

    def backward(self, batch: Batch) -> Tensor:
        totals = self._run(self._schedule.step, batch)
        # DistributedDataParallel, which would sum them on the way, loses count of the micro-batches of a schedule.
        group = self._world.mesh.get_group("replicate")
        sums = [dist.all_reduce(p.grad, group=group, async_op=True) for p in self._net.parameters()]
        for one in sums:
            one.wait()
        return totals

    @torch.no_grad()
    def score(self, batch: Batch) -> Tensor:
        return self._run(self._schedule.eval, batch)

    def _run(self, step: Any, batch: Batch) -> Tensor:
        images, labels = strategy.tensors(batch, self._world)
        with self._autocast():
            logits = step(*((images,) if self._first else ()), **({"target": labels} if self._last else {}))
        # What the other stages know of loss and samples is nothing.
        return strategy.counts(logits, labels) if self._last else torch.zeros(3, device=self._world.device)


def cut(net: VisionTransformer, count: int) -> list[tuple[int, int]]:
    """The first block of each stage, and the one behind its last, so that the largest stage is as small as can be.

    The first stage also has what comes before the blocks, and the last what comes after them.
    """
    weights = [size(block) for block in net.blocks]
    weights[0] += size(net.start)
    weights[-1] += size(net.end)
    return [*pairwise((0, *ends(weights, count)))]


def ends(weights: Sequence[int], count: int) -> tuple[int, ...]:
    """Where each of `count` consecutive parts ends, none of them empty, so that the heaviest is as light as can be."""
    before = [0, *accumulate(weights)]

    @functools.cache
    def best(end: int, parts: int) -> tuple[int, tuple[int, ...]]:
        """Of the first `end` weights: the heaviest part, and where each ends."""
        if parts == 1:
            return before[end], (end,)
        ways = ((best(start, parts - 1), before[end] - before[start]) for start in range(parts - 1, end))
        return min((max(heaviest, last), (*found, end)) for (heaviest, found), last in ways)

    return best(len(weights), count)[1]


def size(layers: nn.Module) -> int:
    return sum(p.numel() for p in layers.parameters())


def drop(net: nn.Module, layers: Sequence[nn.Module]) -> None:
    """Take layers out of the model; the others keep their names."""
    for name, layer in list(net.named_modules()):
        if any(layer is one for one in layers):
            owner, _, child = name.rpartition(".")
            setattr(net.get_submodule(owner), child, None)

"""Pipeline parallelism: each process holds a stage, some of the layers, and sends activations to the next stage.

The stages of one pipeline lie along `stage` of the mesh. Along `replicate` there are copies of the pipeline; their
gradients are all-reduced stage by stage.
"""

import functools
from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe, ScheduleInterleaved1F1B

from trainer import loss, strategy
from trainer.config import Config
from trainer.data import Batch
from trainer.meshes import STAGES
from trainer.processes import World

SCHEDULES: dict[str, Any] = {
    "gpipe": ScheduleGPipe,
    "1f1b": Schedule1F1B,
    "interleaved": ScheduleInterleaved1F1B,
}


class Pipeline:
    """A process's stage, or its two if they are interleaved; all other layers leave the model."""

    def __init__(self, config: Config, net: Any, world: World) -> None:
        self._config, self._net, self._world = config, net, world
        self._first, self._last = world.stage == 0, world.stage == world.stages - 1
        strategy.apply_compile_and_recompute(config, net)
        layers = cut(net, world.stages * STAGES[config.schedule])
        mine = range(world.stage, len(layers), world.stages)
        stages = {i: nn.Sequential(*layers[i]) for i in mine}
        drop(net, [layer for i, others in enumerate(layers) if i not in mine for layer in others])
        net.to(world.device)  # not before: the whole model may be too large
        group = world.mesh.get_group("stage")
        ready = [PipelineStage(stages[i], i, len(layers), world.device, group=group) for i in mine]
        self._schedule = SCHEDULES[config.schedule](
            ready if len(ready) > 1 else ready[0],
            n_microbatches=config.micro_batches,
            loss_fn=lambda logits, labels: loss.summed(logits, labels) / config.global_batch,
            scale_grads=False,
        )

    def backward(self, batch: Batch) -> Tensor:
        totals = self._run(self._schedule.step, batch)
        # DistributedDataParallel, which would overlap the all-reduce, loses count of the micro-batches of a schedule.
        group = self._world.mesh.get_group("replicate")
        sums = [dist.all_reduce(p.grad, group=group, async_op=True) for p in self._net.parameters()]
        for one in sums:
            one.wait()
        return totals

    @torch.no_grad()
    def score(self, batch: Batch) -> Tensor:
        return self._run(self._schedule.eval, batch)

    def _run(self, step: Any, batch: Batch) -> Tensor:
        images, labels = loss.tensors(batch, self._world.device)
        with loss.autocast(self._config, self._world.device):
            logits = step(*((images,) if self._first else ()), **({"target": labels} if self._last else {}))
        if not self._last:  # and so knows nothing of losses and answers
            return torch.zeros(3, device=self._world.device)
        return loss.totals(loss.summed(logits, labels), logits, labels)


def cut(net: Any, count: int) -> list[list[nn.Module]]:
    """The layers of each stage, such that the largest stage is as small as can be.

    The first stage also has the embedding, and the last stage the head.
    """
    weights = [size(block) for block in net.blocks]
    weights[0] += size(net.embed)
    weights[-1] += size(net.head)
    stages: list[list[nn.Module]] = [[*net.blocks][a:b] for a, b in pairwise((0, *ends(weights, count)))]
    stages[0].insert(0, net.embed)
    stages[-1].append(net.head)
    return stages


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

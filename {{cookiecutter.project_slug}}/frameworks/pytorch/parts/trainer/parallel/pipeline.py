"""Each GPU holds a stage, which is a group of layers, and sends activations to the next stage.

Processes along the `stage` mesh dimension form one pipeline. Processes along the `replicate` mesh dimension hold copies
of the same stages, and all-reduce their gradients. Several stages can share a parameter, such as a weight matrix used
for both embedding and output. Each of these stages holds a copy of the parameter, and the stages sum the gradients of
all copies.
"""

import functools
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from datetime import timedelta
from itertools import accumulate, pairwise
from typing import Any, Literal, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe, ScheduleInterleaved1F1B

from trainer import flags, model
from trainer.cluster.world import Mesh, World
from trainer.config import Config
from trainer.data import Batch
from trainer.parallel.clip import clip_gradients
from trainer.parallel.strategy import Strategy, StrategyFlags, autocast, compile_and_recompute
from trainer.step.totals import Totals, measure

SCHEDULES: dict[str, tuple[Any, int]] = {  # with the number of stages per GPU
    "gpipe": (ScheduleGPipe, 1),
    "1f1b": (Schedule1F1B, 1),
    "interleaved": (ScheduleInterleaved1F1B, 2),
}


@dataclass(frozen=True, kw_only=True)
class Flags(StrategyFlags):
    degree: int | None = None
    """Number of GPUs in a pipeline. The default is the number of GPUs per machine."""
    schedule: Literal["gpipe", "1f1b", "interleaved"] = "1f1b"
    """Order of a pipeline's micro-batches. The 1f1b schedule stores the activations of fewer micro-batches than gpipe.
    The interleaved schedule gives each GPU two stages, so GPUs are idle for less time, but send more data."""

    def findings(self) -> Iterator[str]:
        return flags.at_least(1, self, "degree")


class Stages(nn.Module):
    """The stages of a process.

    Each process has two stages with the `interleaved` schedule, and one stage with any other schedule.

    The process removes the layers of all other stages from the model. In the process with the last stage, calling this
    object returns the model's output without gradients. In other processes, the call returns None.
    """

    def __init__(self, config: Flags, net: Any, world: World) -> None:
        super().__init__()
        self.module = net
        count, stage = world.extent("stage"), world.rank % world.extent("stage")
        self._first, self._last = stage == 0, stage == count - 1
        self._replicas, self._global_batch = world.along("replicate").get_group(), config.global_batch
        compile_and_recompute(config, net)
        schedule, each = SCHEDULES[config.schedule]
        layers = cut(net, count * each)
        mine = range(stage, len(layers), count)
        stages = {i: nn.Sequential(*layers[i]) for i in mine}
        self._tied = tied(layers, world, config.collective_timeout)
        self.holders = {parameter: dist.get_world_size(group) for parameter, group in self._tied}
        kept = set(nn.ModuleList(stages.values()).parameters())
        drop([layer for i, others in enumerate(layers) if i not in mine for layer in others], kept)
        net.to(world.device)  # moved late, because the whole model may be too large
        group = world.along("stage").get_group()
        ready = [PipelineStage(stages[i], i, len(layers), world.device, group=group) for i in mine]
        self._schedule = schedule(
            ready if len(ready) > 1 else ready[0],
            n_microbatches=config.micro_batches,
            loss_fn=self._loss,
            scale_grads=False,
        )

    def forward(self, inputs: Tensor) -> Tensor | None:
        return self._run(self._schedule.eval, inputs)

    def forward_backward(self, batch: Batch) -> Tensor | None:
        """Run the forward and backward passes for a batch, and all-reduce the gradients.

        The loss is the mean over the global batch. Returns the model's output.
        """
        self._batch = batch
        output = self._run(self._schedule.step, batch.inputs)
        # DistributedDataParallel would overlap the all-reduce, but miscounts the micro-batches of a schedule.
        sums = [dist.all_reduce(p.grad, group=self._replicas, async_op=True) for p in self.parameters()]
        for work in sums:
            work.wait()
        for parameter, group in self._tied:
            dist.all_reduce(parameter.grad, group=group)
        return output

    def _run(self, step: Any, inputs: Tensor) -> Tensor | None:
        """Run one step of the pipeline schedule.

        The schedule splits the inputs and the sample positions into the same micro-batches.
        """
        places = torch.arange(len(inputs), device=inputs.device)  # a copy from the CPU would block
        output = step(*((inputs,) if self._first else ()), **({"target": places} if self._last else {}))
        return output if self._last else None

    def _loss(self, output: Tensor, places: Tensor) -> Tensor:
        """Return the loss of a micro-batch.

        During evaluation, return 0, because the schedule requires a loss value but doesn't use it.
        """
        if not self.training:
            return output.new_zeros(())
        batch = Batch(*(array[places] for array in self._batch))
        return model.losses(output, batch).sum() / self._global_batch


def cut(net: Any, count: int) -> list[list[nn.Module]]:
    """Split the layers into stages so that the largest stage is as small as possible.

    The first stage also contains the embedding, and the last stage also contains the head.
    """
    weights = [size(block) for block in net.blocks]
    weights[0] += size(net.embed)
    weights[-1] += size(net.head)
    stages: list[list[nn.Module]] = [[*net.blocks][a:b] for a, b in pairwise((0, *ends(weights, count)))]
    stages[0].insert(0, net.embed)
    stages[-1].append(net.head)
    return stages


def tied(layers: Sequence[Sequence[nn.Module]], world: World, timeout: float) -> list[tuple[nn.Parameter, Any]]:
    """Return the parameters that this process shares with other processes, and each parameter's process group.

    Every process must call this function before any process removes layers.
    """
    users: dict[nn.Parameter, dict[int, None]] = {}
    count, mine = world.extent("stage"), world.rank % world.extent("stage")
    for stage, parts in enumerate(layers):
        for parameter in nn.ModuleList(parts).parameters():
            users.setdefault(parameter, {})[stage % count] = None
    shared = []
    for parameter, stages in users.items():
        if len(stages) > 1:
            groups = [[first + stage for stage in stages] for first in range(0, world.size, count)]
            group, _ = dist.new_subgroups_by_enumeration(groups, timedelta(seconds=timeout))
            shared += [(parameter, group)] if mine in stages else []
    return shared


def ends(weights: Sequence[int], count: int) -> tuple[int, ...]:
    """Split `weights` into `count` consecutive, nonempty parts so that the heaviest part is as light as possible.

    Returns the end index of each part.
    """
    before = [0, *accumulate(weights)]

    @functools.cache
    def best(end: int, parts: int) -> tuple[int, tuple[int, ...]]:
        """Split the first `end` weights. Return the weight of the heaviest part, and the end index of each part."""
        if parts == 1:
            return before[end], (end,)
        ways = ((best(start, parts - 1), before[end] - before[start]) for start in range(parts - 1, end))
        return min((max(heaviest, last), (*earlier, end)) for (heaviest, earlier), last in ways)

    return best(len(weights), count)[1]


def size(layers: nn.Module) -> int:
    return sum(p.numel() for p in layers.parameters())


def drop(layers: Sequence[nn.Module], kept: Set[nn.Parameter]) -> None:
    """Remove the buffers of `layers` and all their parameters except those in `kept`.

    The parameters in `kept` remain, so a checkpoint stores each one under all its names.
    """
    for module in nn.ModuleList(layers).modules():
        for name, value in [*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)]:
            if value not in kept:
                setattr(module, name, None)


class Pipeline(Strategy):
    flags = Flags
    needs = ("embed", "blocks", "head")

    def dimensions(self, config: Flags, processes: int) -> Mapping[str, int]:
        return {"replicate": -1, "stage": config.degree or processes}

    def wrap(self, config: Flags, net: Any, world: World) -> Stages:
        return Stages(config, net, world)

    def bare(self, net: Any) -> nn.Module:
        return cast(nn.Module, net.module)

    def clip(self, net: Any, limit: float, world: World) -> Tensor:
        return clip_gradients(net, limit, world, net.holders)

    def parts(self, config: Config) -> int:
        return 1

    def forward_backward(self, config: Config, net: Any, batch: Batch, world: World) -> Totals:
        """Run the forward and backward passes for a batch.

        The pipeline's schedule replaces the loop over micro-batches.
        """
        with autocast(config, world.device):
            output = net.forward_backward(batch)
        return measure(output, batch)

    def findings(self, config: Flags, mesh: Mesh, net: Any) -> Iterator[str]:
        batch, parts, degree = config.global_batch, config.micro_batches, mesh.sizes["stage"]
        stages = degree * SCHEDULES[config.schedule][1]
        if stages > len(net.blocks):
            both = f"--degree {degree} with --schedule {config.schedule}"
            yield f"{both} requires at least {stages} blocks, but the model has {len(net.blocks)}"
        if parts < degree:
            # With m micro-batches, p stages idle for (p - 1) / (m + p - 1) of the time: Huang et al., "GPipe", 2018.
            few = f"--micro-batches is {parts}, but --degree {degree} requires at least {degree}"
            yield f"{few}; use --micro-batches {4 * degree} to keep the stages busy"
        elif config.schedule == "interleaved" and parts % degree:
            yield f"--micro-batches is {parts}, but --schedule interleaved requires a multiple of --degree ({degree})"
        if batch % (mesh.data_size * parts):
            yield (
                f"--global-batch is {batch}, but it must be a multiple of {mesh.data_size * parts}"
                f" ({mesh.data_size} pipelines x {parts} micro-batches)"
            )


STRATEGY = Pipeline()

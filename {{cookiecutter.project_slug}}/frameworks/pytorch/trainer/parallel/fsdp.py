"""Each GPU holds a shard of the model, and gathers a block when it computes it."""

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import torch
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

from trainer import flags
from trainer.cluster.world import Mesh, World
from trainer.parallel.strategy import Strategy, StrategyFlags, compile_and_recompute, precision


@dataclass(frozen=True, kw_only=True)
class Flags(StrategyFlags):
    degree: int | None = None
    """GPUs that hold one copy of the model together; by default all of them. With those of one machine, most of the
    traffic stays within machines."""
    reshard: bool = True
    """Free a block's gathered weights after the forward pass, and gather them again for the backward pass. Without it a
    step is faster and needs more memory."""

    def findings(self) -> Iterator[str]:
        return flags.at_least(1, self, "degree")


class FullyShard(Strategy):
    flags: type[Flags] = Flags
    needs: tuple[str, ...] = ("blocks",)
    casts = False

    def dimensions(self, config: Flags, processes: int) -> Mapping[str, int]:
        return {"replicate": -1, "shard": config.degree} if config.degree else {"shard": -1}

    def wrap(self, config: Flags, net: Any, world: World) -> nn.Module:
        """Cut parameters, gradients and moments along `shard`; they are copied along `replicate`, if there is one.

        While a block computes, the weights of the next are gathered. Low precision halves what is gathered; gradients
        are all-reduced in float32, since small ones would vanish among many processes.
        """
        compile_and_recompute(config, net)
        # FSDP warns of in-place operations on the output, and losses() must not make any.
        warnings.filterwarnings("ignore", "FSDP2-wrapped module .* returned a view tensor")
        policy = MixedPrecisionPolicy(param_dtype=precision(config, world.device), reduce_dtype=torch.float32)
        mesh = world.along(*(name for name in world.dimensions if name != "tensor"))
        shard = partial(fully_shard, mesh=mesh, mp_policy=policy)
        for block in net.blocks:
            shard(block, reshard_after_forward=config.reshard)
        shard(net, reshard_after_forward=False)  # embedding and head, which the backward pass wants again at once
        return cast(nn.Module, net)

    @contextmanager
    def sync(self, net: Any, last: bool) -> Iterator[None]:
        """Delay the all-reduce between copies of the model until the last micro-batch.

        Gradients are cut after each one: until the last, a process would keep those of the whole model.
        """
        net.set_requires_all_reduce(last)
        yield

    def findings(self, config: Flags, mesh: Mesh, net: Any) -> Iterator[str]:
        """Each micro-batch gathers weights, so all processes must have the same number of them."""
        batch, parts, shares = config.global_batch, config.micro_batches, mesh.data_size
        if batch // shares < parts:
            yield (
                f"--micro-batches is {parts}, must be at most the samples of a process"
                f" (--global-batch {batch} / {shares} = {batch // shares})"
            )


STRATEGY = FullyShard()

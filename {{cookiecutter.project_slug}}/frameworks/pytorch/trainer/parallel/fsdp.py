"""Each GPU holds a shard of the model, and gathers a block's weights before computing the block."""

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
    """Number of GPUs that together hold one copy of the model. The default is all GPUs. If the degree is the number of
    GPUs per machine, most traffic stays within machines."""
    reshard: bool = True
    """Free a block's gathered weights after the forward pass, and gather them again for the backward pass. --no-reshard
    makes a step faster, but requires more memory."""

    def findings(self) -> Iterator[str]:
        return flags.at_least(1, self, "degree")


class FullyShard(Strategy):
    flags: type[Flags] = Flags
    needs: tuple[str, ...] = ("blocks",)
    casts = False

    def dimensions(self, config: Flags, processes: int) -> Mapping[str, int]:
        return {"replicate": -1, "shard": config.degree} if config.degree else {"shard": -1}

    def wrap(self, config: Flags, net: Any, world: World) -> nn.Module:
        """Shard the parameters, gradients, and optimizer moments along the `shard` mesh dimension.

        If the mesh has a `replicate` dimension, the shards are replicated along it.

        While a block is computed, the weights of the next block are gathered. With bfloat16 as the compute dtype,
        gathered weights are half as large. Gradients are all-reduced in float32, because sums in bfloat16 over many
        processes would lose small gradients.
        """
        compile_and_recompute(config, net)
        # FSDP warns about in-place operations on the output, which losses() must not use anyway.
        warnings.filterwarnings("ignore", "FSDP2-wrapped module .* returned a view tensor")
        policy = MixedPrecisionPolicy(param_dtype=precision(config, world.device), reduce_dtype=torch.float32)
        mesh = world.along(*(name for name in world.dimensions if name != "tensor"))
        shard = partial(fully_shard, mesh=mesh, mp_policy=policy)
        for block in net.blocks:
            shard(block, reshard_after_forward=config.reshard)
        shard(net, reshard_after_forward=False)  # embedding and head, which the backward pass needs immediately
        return cast(nn.Module, net)

    @contextmanager
    def sync(self, net: Any, last: bool) -> Iterator[None]:
        """Delay the gradient all-reduce along the `replicate` mesh dimension until the last micro-batch.

        Gradients are still sharded after each micro-batch. Without sharding, each process would store all gradients of
        the model.
        """
        net.set_requires_all_reduce(last)
        yield

    def findings(self, config: Flags, mesh: Mesh, net: Any) -> Iterator[str]:
        """Yield an error message if processes would run different numbers of micro-batches.

        All processes must run the same number of micro-batches, because gathering weights for a micro-batch requires
        all processes.
        """
        batch, parts, shares = config.global_batch, config.micro_batches, mesh.data_size
        if batch // shares < parts:
            yield (
                f"--micro-batches is {parts}, but each process has fewer samples"
                f" (--global-batch {batch} / {shares} = {batch // shares})"
            )


STRATEGY = FullyShard()

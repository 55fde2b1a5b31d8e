"""Each GPU holds a shard of the model, and gathers a block when it computes it."""

import warnings
from collections.abc import Iterator
from functools import partial
from typing import Any, cast

import torch
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

from trainer.config import Config
from trainer.meshes import Mesh
from trainer.parallel import apply_compile_and_recompute
from trainer.precision import precision
from trainer.processes import World
from trainer.strategies import Strategy


def shard(config: Config, net: Any, world: World) -> nn.Module:
    """Cut parameters, and with them gradients and moments, along `shard`; they are copied along `replicate`, if any.

    A block at a time: while one computes, the weights of the next are gathered. Low precision halves what is gathered;
    gradients are all-reduced in float32, since small ones would vanish among many processes.
    """
    apply_compile_and_recompute(config, net)
    # It warns of in-place operations on the output, and losses() must not make any.
    warnings.filterwarnings("ignore", "FSDP2-wrapped module .* returned a view tensor")
    policy = MixedPrecisionPolicy(param_dtype=precision(config, world.device), reduce_dtype=torch.float32)
    mesh = world.along(*(name for name in world.dimensions if name != "tensor"))
    wrap = partial(fully_shard, mesh=mesh, mp_policy=policy)
    for block in net.blocks:
        wrap(block, reshard_after_forward=config.reshard)
    wrap(net, reshard_after_forward=False)  # embedding and head, which the backward pass wants again at once
    return cast(nn.Module, net)


def problems(config: Config, mesh: Mesh, net: Any) -> Iterator[str]:
    """Each micro-batch gathers weights, so all processes must have the same number of them."""
    batch, parts, shares = config.global_batch, config.micro_batches, mesh.data_size
    if batch // shares < parts:
        yield (
            f"--micro-batches is {parts}, must be at most the samples of a process"
            f" (--global-batch {batch} / {shares} = {batch // shares})"
        )


STRATEGY = Strategy(
    parallelize=shard,
    dimensions=("shard",),
    needs=("blocks",),
    flags=("reshard",),
    problems=problems,
)

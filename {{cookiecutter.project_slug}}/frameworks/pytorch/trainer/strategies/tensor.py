"""Each GPU holds a part of every layer, and of that a shard."""

from collections.abc import Iterator
from typing import Any

from torch import nn
from torch.distributed.tensor.parallel import parallelize_module

from trainer.config import Config
from trainer.meshes import Mesh
from trainer.processes import World
from trainer.strategies import Strategy, fsdp


def split(config: Config, net: Any, world: World) -> nn.Module:
    """Cut each block along `tensor`, as the model says, and what is left along `shard`."""
    for block in net.blocks:
        parallelize_module(block, world.along("tensor"), net.tensor_parts)
    return fsdp.shard(config, net, world)


def problems(config: Config, mesh: Mesh, net: Any) -> Iterator[str]:
    if net.heads % mesh.sizes["tensor"]:
        yield f"--degree is {mesh.sizes['tensor']}, must divide the {net.heads} attention heads of the model"
    yield from fsdp.problems(config, mesh, net)


STRATEGY = Strategy(
    parallelize=split,
    dimensions=("shard", "tensor"),
    needs=("blocks", "heads", "tensor_parts"),
    flags=("degree", "reshard"),
    problems=problems,
)

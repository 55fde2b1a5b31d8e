"""Each GPU holds a part of every layer, and of that a shard."""

from collections.abc import Iterator
from typing import Any

from torch import nn
from torch.distributed.tensor.parallel import parallelize_module

from trainer.cluster.world import Mesh, World
from trainer.config import Config
from trainer.parallel.fsdp import FullyShard


class TensorParallel(FullyShard):
    dimensions = ("shard", "tensor")
    needs = ("blocks", "heads", "tensor_parts")
    flags = ("degree", "reshard")

    def wrap(self, config: Config, net: Any, world: World) -> nn.Module:
        """Cut each block along `tensor`, as the model says, and what is left along `shard`."""
        for block in net.blocks:
            parallelize_module(block, world.along("tensor"), net.tensor_parts)
        return super().wrap(config, net, world)

    def findings(self, config: Config, mesh: Mesh, net: Any) -> Iterator[str]:
        if net.heads % mesh.sizes["tensor"]:
            yield f"--degree is {mesh.sizes['tensor']}, must divide the {net.heads} attention heads of the model"
        yield from super().findings(config, mesh, net)


STRATEGY = TensorParallel()

"""Each GPU computes a slice of every layer, and stores a shard of that slice's weights."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn
from torch.distributed.tensor.parallel import ColwiseParallel, ParallelStyle, RowwiseParallel, parallelize_module

from trainer.cluster.world import Mesh, World
from trainer.parallel import fsdp

STYLES: dict[str, type[ParallelStyle]] = {"outputs": ColwiseParallel, "inputs": RowwiseParallel}


@dataclass(frozen=True, kw_only=True)
class Flags(fsdp.Flags):
    degree: int | None = None
    """Number of GPUs across which each layer is split. The default is the number of GPUs per machine."""


class TensorParallel(fsdp.FullyShard):
    flags = Flags
    needs = ("blocks", "heads", "tensor_parts")

    def dimensions(self, config: fsdp.Flags, processes: int) -> Mapping[str, int]:
        return {"shard": -1, "tensor": config.degree or processes}

    def wrap(self, config: fsdp.Flags, net: Any, world: World) -> nn.Module:
        """Split each block along the `tensor` mesh dimension, as the model specifies.

        Then shard the resulting parts along the `shard` mesh dimension.
        """
        for block in net.blocks:
            plan = {name: STYLES[way]() if way in STYLES else way for name, way in net.tensor_parts.items()}
            parallelize_module(block, world.along("tensor"), plan)
        return super().wrap(config, net, world)

    def findings(self, config: fsdp.Flags, mesh: Mesh, net: Any) -> Iterator[str]:
        if net.heads % mesh.sizes["tensor"]:
            yield f"--degree {mesh.sizes['tensor']} doesn't evenly divide the number of attention heads ({net.heads})"
        layers = dict(net.blocks[0].named_modules())
        for name, way in net.tensor_parts.items():
            if name not in layers:
                yield f"{name} in tensor_parts of trainer/model.py isn't a layer of a block; use the name of a layer"
            if way not in [*STYLES] and not isinstance(way, ParallelStyle):
                yield f'{name} in tensor_parts of trainer/model.py is "{way}", but must be {" or ".join(STYLES)}'
        yield from super().findings(config, mesh, net)


STRATEGY = TensorParallel()

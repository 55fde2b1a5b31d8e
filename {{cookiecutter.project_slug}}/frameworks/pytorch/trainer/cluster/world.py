"""All processes of a run: how they lie, which one this is, and the collectives of the loop."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh


@dataclass(frozen=True)
class Mesh:
    """Number of processes along each dimension, outermost first, so that the last one stays within a machine.

    Along `replicate` and `shard` processes take different samples; along `stage` and `tensor` they share them.
    """

    sizes: Mapping[str, int]

    @property
    def size(self) -> int:
        return math.prod(self.sizes.values())

    @property
    def data_size(self) -> int:
        """Shares into which the global batch is divided."""
        return self.sizes.get("replicate", 1) * self.sizes.get("shard", 1)

    def __str__(self) -> str:
        """`replicate 3 x stage 2`"""
        return " x ".join(f"{name} {size}" for name, size in self.sizes.items())


@dataclass(frozen=True)
class World:
    """All processes of the run, their mesh, and which of them this one is."""

    rank: int
    size: int
    device: torch.device
    mesh: DeviceMesh | None = None  # None for a process without a process group
    group: dist.ProcessGroup | None = None  # of its collectives; None: the default, which only one thread may use

    @property
    def is_chief(self) -> bool:
        return self.rank == 0

    @property
    def dimensions(self) -> tuple[str, ...]:
        """Names of the mesh's dimensions, outermost first."""
        return (self.mesh and self.mesh.mesh_dim_names) or ()

    def along(self, *dimensions: str) -> DeviceMesh:
        """Return the part of the mesh that this process shares along these dimensions."""
        assert self.mesh is not None, "a process without a process group has nobody to share with"
        return self.mesh[dimensions]

    def extent(self, dimension: str) -> int:
        """Return the number of processes along a dimension; 1 where the mesh has none of that name."""
        return self.along(dimension).size() if dimension in self.dimensions else 1

    @property
    def data_size(self) -> int:
        """Shares into which the global batch is divided."""
        return self.extent("replicate") * self.extent("shard")

    @property
    def data_rank(self) -> int:
        """Index of this process's share; processes along the last dimension may have it in common."""
        return self.rank // (self.size // self.data_size)

    def with_own_group(self, timeout: float) -> "World":
        """Return the same processes for another thread: the collectives of two threads must not mix.

        Every process must call it.

        Args:
            timeout: of a collective, in seconds.
        """
        group = dist.new_group(backend="gloo", timeout=timedelta(seconds=timeout))
        return replace(self, device=torch.device("cpu"), group=group)

    def sum(self, values: Tensor) -> Tensor:
        """Add the values of all processes, in place. Every process must call it."""
        dist.all_reduce(values, group=self.group)
        return values

    def gather(self, value: Any) -> list[Any]:
        """Return every process's value, by rank. Every process must call it."""
        values = [value] * self.size
        if self.size > 1:
            dist.all_gather_object(values, value, group=self.group)
        return values

    def wait(self) -> None:
        """Return when every process is here."""
        dist.barrier(self.group)

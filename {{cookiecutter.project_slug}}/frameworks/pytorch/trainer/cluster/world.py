"""Describes the processes of a run: the mesh, the rank of this process, and the training loop's collectives."""

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
    """The number of processes along each dimension of the mesh.

    The outermost dimension comes first. Processes along the last dimension have consecutive ranks.

    Processes along the `replicate` and `shard` dimensions train on different samples. Processes along the `stage` and
    `tensor` dimensions train on the same samples.
    """

    sizes: Mapping[str, int]

    @property
    def size(self) -> int:
        return math.prod(self.sizes.values())

    @property
    def data_size(self) -> int:
        """The data-parallel size, which is the number of slices of the global batch."""
        return self.sizes.get("replicate", 1) * self.sizes.get("shard", 1)

    def __str__(self) -> str:
        """Return the names and sizes of the dimensions, such as `replicate 3 x stage 2`."""
        return " x ".join(f"{name} {size}" for name, size in self.sizes.items())


@dataclass(frozen=True)
class World:
    """The group of all processes in a run, with their mesh and the rank of this process."""

    rank: int
    size: int
    device: torch.device
    mesh: DeviceMesh | None = None  # None for a process without a process group
    group: dist.ProcessGroup | None = None  # for collectives; None is the default group, which only one thread may use

    @property
    def is_chief(self) -> bool:
        return self.rank == 0

    @property
    def dimensions(self) -> tuple[str, ...]:
        """The names of the mesh dimensions, outermost first."""
        return (self.mesh and self.mesh.mesh_dim_names) or ()

    def along(self, *dimensions: str) -> DeviceMesh:
        """Return this process's submesh along the given dimensions."""
        assert self.mesh is not None, "a process without a process group doesn't have a mesh"
        return self.mesh[dimensions]

    def extent(self, dimension: str) -> int:
        """Return the number of processes along a mesh dimension. If the mesh doesn't have this dimension, return 1."""
        return self.along(dimension).size() if dimension in self.dimensions else 1

    @property
    def data_size(self) -> int:
        """The data-parallel size, which is the number of slices of the global batch."""
        return self.extent("replicate") * self.extent("shard")

    @property
    def data_rank(self) -> int:
        """The index of this process's slice of the global batch.

        Processes along the `stage` and `tensor` mesh dimensions share the same slice.
        """
        return self.rank // (self.size // self.data_size)

    def with_own_group(self, timeout: float) -> "World":
        """Return a copy of this world with a separate process group, for use in another thread.

        Two threads can't share a process group, because their collectives would interleave.

        Every process must call this method.

        Args:
            timeout: the timeout of each collective, in seconds.
        """
        group = dist.new_group(backend="gloo", timeout=timedelta(seconds=timeout))
        return replace(self, device=torch.device("cpu"), group=group)

    def sum(self, values: Tensor) -> Tensor:
        """Sum the values over all processes, in place. Every process must call this method."""
        dist.all_reduce(values, group=self.group)
        return values

    def gather(self, value: Any) -> list[Any]:
        """Return each process's value, in rank order. Every process must call this method."""
        values = [value] * self.size
        if self.size > 1:
            dist.all_gather_object(values, value, group=self.group)
        return values

    def wait(self) -> None:
        """Wait until every process has called this method."""
        dist.barrier(self.group)

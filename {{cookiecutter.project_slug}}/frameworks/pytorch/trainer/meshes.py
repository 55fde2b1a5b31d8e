"""How the processes of a run lie, or why they cannot. Says no before any process waits for another."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from trainer.errors import TrainerError


@dataclass(frozen=True)
class Mesh:
    """How many processes lie along each dimension, outermost first, so that the last one stays within a machine.

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


def mesh(dimensions: tuple[str, ...], degree: int | None, machines: int, processes: int) -> Mesh:
    """The mesh on machines with so many processes each.

    Args:
        dimensions: one, or two, of which the last has `degree` processes, by default those of a machine.

    Raises:
        TrainerError: the degree does not divide the processes.
    """
    outer, *inner = dimensions
    world, last = machines * processes, degree or processes
    if not inner:
        return Mesh({outer: world})
    if world % last:
        raise TrainerError(
            f"--degree is {last}, must divide the {world} processes ({machines} machines with {processes} each)"
        )
    return Mesh({outer: world // last, inner[0]: last})

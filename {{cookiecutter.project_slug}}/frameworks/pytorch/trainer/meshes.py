"""How the processes of a run lie."""

import math
from collections.abc import Mapping
from dataclasses import dataclass


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

"""How a job would do on 1 to 1,024 of its machines: throughput, efficiency and cost.

The batch of a GPU stays what it is in the job, so the global batch grows with the machines. Reducers grow by the
documented rule. All of it is bound by wire time (allreduce_cost.py): real rings get slower with their length.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

from vertex_launch.catalog import reducers_needed
from vertex_launch.plan.allreduce_cost import Machines, Reducers
from vertex_launch.plan.reducers import AllReduceOptions, step_seconds, sums

COUNTS = tuple(2**power for power in range(11))
WAYS: dict[str, Callable[[AllReduceOptions], float]] = {
    "ring": lambda found: found.ring.seconds,
    "hierarchical ring": lambda found: found.hierarchical.seconds,
    "reducers": lambda found: found.reducers.seconds,
}
KNEE = 0.9  # efficiency; a curve's knee is its last count of machines that reaches it


@dataclass(frozen=True)
class Load:
    """One step of the job on one of its machines."""

    samples: float  # of one machine per step
    compute: float  # seconds
    gradient_bytes: float


@dataclass(frozen=True)
class Rates:
    """What machines cost, in USD per hour, and how fast those are that the job may use as reducers."""

    machine: float
    reducer: float
    reducer_gbps: float


@dataclass(frozen=True)
class Point:
    """The job on so many machines."""

    machines: int
    samples_per_second: float
    efficiency: float  # samples per second and machine, over those of one machine alone
    usd_per_million: float  # samples; not a number if a price is not known


@dataclass(frozen=True)
class Curve:
    """The job with its gradients summed in one way."""

    way: str
    points: tuple[Point, ...]

    @property
    def knee(self) -> Point:
        """The last point whose efficiency reaches KNEE; a machine alone always does."""
        return [point for point in self.points if point.efficiency >= KNEE][-1]


def curves(load: Load, machines: Machines, rates: Rates, fabric_gbps: float | None = None) -> tuple[Curve, ...]:
    """One for each way to sum the gradients."""
    return tuple(
        Curve(way, tuple(_point(load, replace(machines, count=count), rates, fabric_gbps, way) for count in COUNTS))
        for way in WAYS
    )


def _point(load: Load, machines: Machines, rates: Rates, fabric_gbps: float | None, way: str) -> Point:
    alone = machines.count == 1
    needed = reducers_needed(machines.count, machines.gbps, rates.reducer_gbps)
    found = sums(load.gradient_bytes, machines, Reducers(needed, rates.reducer_gbps), fabric_gbps)
    seconds = step_seconds(load.compute, WAYS[way](found))
    samples_per_second = machines.count * load.samples / seconds
    usd = machines.count * rates.machine + (needed * rates.reducer if way == "reducers" and not alone else 0)
    return Point(machines.count, samples_per_second, load.compute / seconds, usd / 3600 / samples_per_second * 1e6)

"""Throughput, efficiency and cost of a job on 1 to 1,024 of its machines.

The batch of a GPU stays what it is in the job, so the global batch grows with the machines. Reducers grow by the
documented rule. All figures rest on wire times (allreduce_cost.py): real rings get slower with their length.
"""

import math
from dataclasses import dataclass, replace

from vertex_launch.facts.catalog import reducers_needed
from vertex_launch.plan.allreduce_cost import Machines
from vertex_launch.plan.reducers import Sizing, all_reduce_options, step_seconds

COUNTS = tuple(2**power for power in range(11))
WAYS = {"ring": "ring", "hierarchical ring": "hierarchical", "reducers": "reducers"}  # to fields of AllReduceOptions
KNEE = 0.9  # efficiency; a curve's knee is its last count of machines that reaches it


@dataclass(frozen=True)
class Load:
    """One step of the job on one of its machines."""

    samples: float  # of one machine per step
    compute: float  # seconds
    gradient_bytes: float
    usd: float  # per hour


@dataclass(frozen=True)
class Point:
    """The job on so many machines."""

    machines: int
    samples_per_second: float
    efficiency: float  # samples per second and machine, over those of one machine alone
    usd_per_million: float  # samples; NaN if a price is unknown


@dataclass(frozen=True)
class Curve:
    """The job with one way to all-reduce its gradients."""

    way: str
    points: tuple[Point, ...]

    @property
    def knee(self) -> Point:
        """The last point whose efficiency reaches KNEE; a machine alone always does."""
        return [point for point in self.points if point.efficiency >= KNEE][-1]


def curves(load: Load, machines: Machines, reducer: Sizing) -> tuple[Curve, ...]:
    """Return a curve for each way to all-reduce the gradients."""
    return tuple(
        Curve(way, tuple(_point(load, replace(machines, count=count), reducer, way) for count in COUNTS))
        for way in WAYS
    )


def point(load: Load, machines: int, communication: float, usd: float) -> Point:
    """The speed and cost of a step on so many machines, from the seconds of its all-reduce and USD per hour."""
    seconds = step_seconds(load.compute, communication)
    rate = machines * load.samples / seconds
    return Point(machines, rate, load.compute / seconds, usd / 3600 / rate * 1e6)


def _point(load: Load, machines: Machines, reducer: Sizing, way: str) -> Point:
    needed = reducers_needed(machines.count, machines.gbps, reducer.gbps)
    options = all_reduce_options(load.gradient_bytes, machines, replace(reducer, count=needed))
    rented = needed if way == "reducers" and machines.count > 1 else 0
    usd = machines.count * load.usd + rented * (reducer.price.usd if reducer.price else math.nan)
    return point(load, machines.count, getattr(options, WAYS[way]).seconds, usd)

"""Computes the throughput, efficiency, and cost of a job on 1 to 1,024 of its machines.

Each GPU keeps its batch size, so the global batch grows with the number of machines. The number of reducers follows
the rule in Vertex AI's documentation. All figures are based on network transfer times from allreduce_cost.py. In
practice, all-reduces in long rings take longer.
"""

import math
from dataclasses import dataclass, replace

from vertex_launch.facts.catalog import reducers_needed
from vertex_launch.plan.allreduce_cost import Machines
from vertex_launch.plan.reducers import Sizing, all_reduce_options, step_seconds

COUNTS = tuple(2**power for power in range(11))
WAYS = {"ring": "ring", "hierarchical ring": "hierarchical", "reducers": "reducers"}  # to fields of AllReduceOptions
KNEE = 0.9  # efficiency; a curve's knee is its largest number of machines with this efficiency


@dataclass(frozen=True)
class Load:
    """The load of one training step on one machine of the job."""

    samples: float  # of one machine per step
    compute: float  # seconds
    gradient_bytes: float
    usd: float  # per hour


@dataclass(frozen=True)
class Point:
    """The speed and the cost of the job on a certain number of machines."""

    machines: int
    samples_per_second: float
    efficiency: float  # samples per second per machine, relative to a single machine
    usd_per_million: float  # samples; NaN if a price is unknown


@dataclass(frozen=True)
class Curve:
    """The scaling of the job with one all-reduce method."""

    way: str
    points: tuple[Point, ...]

    @property
    def knee(self) -> Point:
        """The point with the most machines whose efficiency is at least KNEE. A single machine has efficiency 1."""
        return [point for point in self.points if point.efficiency >= KNEE][-1]


def curves(load: Load, machines: Machines, reducer: Sizing) -> tuple[Curve, ...]:
    """Return a curve for each all-reduce method."""
    return tuple(
        Curve(way, tuple(_point(load, replace(machines, count=count), reducer, way) for count in COUNTS))
        for way in WAYS
    )


def point(load: Load, machines: int, communication: float, usd: float) -> Point:
    """Return the speed and the cost of the job on `machines` machines.

    `communication` is the all-reduce time per step in seconds, and `usd` is the price in USD per hour.
    """
    seconds = step_seconds(load.compute, communication)
    rate = machines * load.samples / seconds
    return Point(machines, rate, load.compute / seconds, usd / 3600 / rate * 1e6)


def _point(load: Load, machines: Machines, reducer: Sizing, way: str) -> Point:
    needed = reducers_needed(machines.count, machines.gbps, reducer.gbps)
    options = all_reduce_options(load.gradient_bytes, machines, replace(reducer, count=needed))
    rented = needed if way == "reducers" and machines.count > 1 else 0
    usd = machines.count * load.usd + rented * (reducer.price.usd if reducer.price else math.nan)
    return point(load, machines.count, getattr(options, WAYS[way]).seconds, usd)

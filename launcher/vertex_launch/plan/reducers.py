"""Computes how many reduction servers a job needs, how much time they save, and how much they cost.

A training step computes gradients and all-reduces them. The all-reduce of a layer starts while the backward pass still
computes the gradients of earlier layers, so the two operations partly overlap. This overlap is at most 2/3 of the
compute time, because the backward pass has twice as many operations as the forward pass. Source: Zhang et al.,
"Poseidon", USENIX ATC 2017, wait-free backpropagation. The actual overlap is smaller, because the all-reduce of the
first layer doesn't overlap with any computation.
"""

import math
from dataclasses import dataclass, replace

from vertex_launch.facts.catalog import Catalog, Price, reducers_needed
from vertex_launch.plan import allreduce_cost as cost
from vertex_launch.plan.allreduce_cost import AllReduce, Machines

COLLNET_GPUS = 8  # of one machine, at most. Source: NCCL 2.12 to 2.32, "CollNet currently only supports up to 8 GPUs"
OWN_PLUGIN = ("a3", "a4")  # families with their own network plug-in, which has the same name as the reducers' plug-in
OVERLAP = 2 / 3  # the share of the compute time that hides all-reduces


@dataclass(frozen=True)
class AllReduceOptions:
    """The cost of each method for all-reducing the gradients of a job. One of the methods uses a set of reducers."""

    ring: AllReduce  # through every GPU, NCCL's default
    hierarchical: AllReduce  # inside each machine first
    reducers: AllReduce
    gpudirect: AllReduce | None = None  # the ring on the GPUs' own network, if there is one

    def gain(self, compute: float) -> float:
        """Return the fraction of the step time that reducers save compared with the ring."""
        return 1 - step_seconds(compute, self.reducers.seconds) / step_seconds(compute, self.ring.seconds)


@dataclass(frozen=True)
class Sizing:
    """A set of reducers that a job file contains or that the plan recommends."""

    machine_type: str
    count: int
    gbps: float  # of each
    price: Price | None  # of each, per hour
    break_even: float  # with fewer, the ring is faster

    def __str__(self) -> str:
        return f"{self.count} x {self.machine_type}"

    @property
    def usd(self) -> float | None:
        """The price of all reducers in USD per hour."""
        return self.count * self.price.usd if self.price else None


def bypassed(machine_type: str, gpus: int) -> str:
    """Return why NCCL would silently bypass reducers on a machine.

    If NCCL would use the reducers, return "".
    """
    if machine_type.startswith(OWN_PLUGIN):
        return f"an {machine_type} has its own network plug-in, and NCCL loads only one"
    if gpus > COLLNET_GPUS:
        return f"NCCL uses reducers on machines with at most {COLLNET_GPUS} GPUs, but an {machine_type} has {gpus}"
    return ""


def sizing(machine_type: str, count: int, machines: Machines, catalog: Catalog) -> Sizing:
    """Return a set of `count` reducers of one machine type for the training machines."""
    gbps = catalog.network_gbps(machine_type) or 1.0
    return Sizing(machine_type, count, gbps, catalog.price(machine_type), cost.break_even_reducers(machines, gbps))


def advised(machines: Machines, total_gbps: float, catalog: Catalog) -> Sizing:
    """Return the cheapest set of reducers that can send `total_gbps` in total.

    `total_gbps` is the total network speed of pools 0 and 1. Vertex AI's documentation recommends this rule.
    """
    counts = {name: reducers_needed(1, total_gbps, catalog.network_gbps(name) or 1.0) for name in catalog.reducer_types}
    choices = [sizing(name, count, machines, catalog) for name, count in counts.items()]
    return min(choices, key=lambda choice: math.inf if choice.usd is None else choice.usd)


def all_reduce_options(size: float, machines: Machines, reducers: Sizing) -> AllReduceOptions:
    """Return the cost of each method for all-reducing `size` bytes across the machines."""
    plain = replace(machines, fabric_gbps=None)  # for an image without the plug-in
    return AllReduceOptions(
        ring=cost.ring(size, plain, machines.members),
        hierarchical=cost.ring(size, plain, machines.count),
        reducers=cost.by_reducers(size, machines, reducers.count, reducers.gbps),
        gpudirect=cost.ring(size, machines, machines.members) if machines.fabric_gbps else None,
    )


def step_seconds(compute: float, communication: float) -> float:
    """Return the step time in seconds.

    The step time is the compute time plus the communication time that doesn't overlap with computation.
    """
    return compute + max(0.0, communication - OVERLAP * compute)


def break_even_compute(ring: float, reduced: float, machines_usd: float, reducers_usd: float) -> float:
    """Return the compute time per step, in seconds, up to which reducers pay for themselves.

    If reducers never pay for themselves, return 0. Let w and r be the prices of the training machines and of the
    reducers in USD per hour. The returned time t is the compute time at which a step costs the same with and without
    reducers: w x step(t, ring) = (w + r) x step(t, reduced). Above t, the all-reduce overlaps with computation, or
    computation dominates the step. Both sides of the equation are piecewise linear in t with one breakpoint each,
    which leads to two cases.
    """
    if machines_usd * ring <= (machines_usd + reducers_usd) * reduced:
        return 0.0
    if not reducers_usd:
        return ring / OVERLAP  # above this time, the ring is hidden
    shown = 1 - OVERLAP
    both = (machines_usd * ring - (machines_usd + reducers_usd) * reduced) / (shown * reducers_usd)
    if both * OVERLAP <= reduced:
        return both
    return machines_usd * ring / (machines_usd * OVERLAP + reducers_usd)


def usd_per_saved_hour(compute: float, both: AllReduceOptions, machines_usd: float, reducers_usd: float) -> float:
    """Return the additional cost, in USD, of each hour of training time saved.

    If reducers also make the job cheaper, the additional cost is negative.
    """
    ring, reduced = step_seconds(compute, both.ring.seconds), step_seconds(compute, both.reducers.seconds)
    return ((machines_usd + reducers_usd) * reduced - machines_usd * ring) / (ring - reduced)

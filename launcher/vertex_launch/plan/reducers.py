"""Computes how many reduction servers a job needs, how they change a step, and what they cost.

A step computes gradients and all-reduces them. The all-reduce of a layer begins while the backward pass still computes
the earlier layers, so the backward pass hides a part of it. The hidden part is at most 2/3 of the compute time, because
the backward pass has twice the operations of the forward pass. Source: Zhang et al., "Poseidon", USENIX ATC 2017,
wait-free backpropagation. This is an upper bound, because no computation hides the all-reduce of the first layer.
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
    """The ways to all-reduce the gradients of one job, with one set of reducers."""

    ring: AllReduce  # through every GPU, NCCL's default
    hierarchical: AllReduce  # inside each machine first
    reducers: AllReduce
    gpudirect: AllReduce | None = None  # the ring on the GPUs' own network, if there is one

    def gain(self, compute: float) -> float:
        """Return the share of a step that reducers save compared with the ring."""
        return 1 - step_seconds(compute, self.reducers.seconds) / step_seconds(compute, self.ring.seconds)


@dataclass(frozen=True)
class Sizing:
    """A set of reducers that a job has or should have."""

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
    """Return why NCCL would silently bypass reducers on such a machine, or "" if NCCL would use them."""
    if machine_type.startswith(OWN_PLUGIN):
        return f"an {machine_type} has its own network plug-in, and NCCL loads only one plug-in"
    if gpus > COLLNET_GPUS:
        return f"NCCL uses reducers on machines with at most {COLLNET_GPUS} GPUs, but an {machine_type} has {gpus}"
    return ""


def sizing(machine_type: str, count: int, machines: Machines, catalog: Catalog) -> Sizing:
    """Return a set of `count` reducers of one type, for the machines that train."""
    gbps = catalog.network_gbps(machine_type) or 1.0
    return Sizing(machine_type, count, gbps, catalog.price(machine_type), cost.break_even_reducers(machines, gbps))


def advised(machines: Machines, total_gbps: float, catalog: Catalog) -> Sizing:
    """Return the cheapest reducers that together send `total_gbps`, as much as pools 0 and 1 (the documented rule)."""
    counts = {name: reducers_needed(1, total_gbps, catalog.network_gbps(name) or 1.0) for name in catalog.reducer_types}
    choices = [sizing(name, count, machines, catalog) for name, count in counts.items()]
    return min(choices, key=lambda choice: math.inf if choice.usd is None else choice.usd)


def all_reduce_options(size: float, machines: Machines, reducers: Sizing) -> AllReduceOptions:
    """Return the ways to all-reduce `size` bytes among these machines."""
    plain = replace(machines, fabric_gbps=None)  # for an image without the plug-in
    return AllReduceOptions(
        ring=cost.ring(size, plain, machines.members),
        hierarchical=cost.ring(size, plain, machines.count),
        reducers=cost.by_reducers(size, machines, reducers.count, reducers.gbps),
        gpudirect=cost.ring(size, machines, machines.members) if machines.fabric_gbps else None,
    )


def step_seconds(compute: float, communication: float) -> float:
    """Return the seconds of a step: its compute time, and the part of the all-reduce that computing can't hide."""
    return compute + max(0.0, communication - OVERLAP * compute)


def break_even_compute(ring: float, reduced: float, machines_usd: float, reducers_usd: float) -> float:
    """Return the compute seconds per step up to which reducers pay for themselves; 0 if they never do.

    Let w and r be the USD per hour of the machines that train and of the reducers. The result is the time t at which a
    step costs the same with and without reducers: w x step(t, ring) = (w + r) x step(t, reduced). Above t, computing
    hides the all-reduce or dominates the step. Both sides are linear in t with one bend each, which gives two cases.
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
    """Return the USD for each saved hour of training; negative if the job also gets cheaper."""
    ring, reduced = step_seconds(compute, both.ring.seconds), step_seconds(compute, both.reducers.seconds)
    return ((machines_usd + reducers_usd) * reduced - machines_usd * ring) / (ring - reduced)

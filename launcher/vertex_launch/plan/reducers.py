"""Reduction servers of a job: how many it needs, what they change in a step, and what they cost.

A step computes and all-reduces its gradients. The all-reduce of a layer begins while the backward pass still computes
the layers before it, so a part of it is hidden: up to 2/3 of the compute time, since the backward pass has twice the
operations of the forward pass. Source: Zhang et al., "Poseidon", USENIX ATC 2017, wait-free backpropagation. The share
is a bound, as nothing is left to hide the all-reduce of the first layer.
"""

import math
from dataclasses import dataclass, replace

from vertex_launch.facts.catalog import Catalog, Price, reducers_needed
from vertex_launch.plan import allreduce_cost as cost
from vertex_launch.plan.allreduce_cost import AllReduce, Machines

COLLNET_GPUS = 8  # of one machine, at most. Source: NCCL 2.12 to 2.32, "CollNet currently only supports up to 8 GPUs"
OWN_PLUGIN = ("a3", "a4")  # families with their own network plug-in, under the same name as the reducers' plug-in
OVERLAP = 2 / 3  # the share of the compute time that hides all-reduces


@dataclass(frozen=True)
class AllReduceOptions:
    """The ways to all-reduce the gradients of one job, with one set of reducers."""

    ring: AllReduce  # through every GPU, as NCCL does it by default
    hierarchical: AllReduce  # inside each machine first
    reducers: AllReduce
    gpudirect: AllReduce | None = None  # the ring on the GPUs' own network, where they have one

    def gain(self, compute: float) -> float:
        """The share of a step that reducers save over the ring."""
        return 1 - step_seconds(compute, self.reducers.seconds) / step_seconds(compute, self.ring.seconds)


@dataclass(frozen=True)
class Sizing:
    """A set of reducers: the ones that a job has, or should have."""

    machine_type: str
    count: int
    gbps: float  # of each
    price: Price | None  # of each, per hour
    break_even: float  # with fewer, the ring is faster

    def __str__(self) -> str:
        return f"{self.count} x {self.machine_type}"

    @property
    def usd(self) -> float | None:
        """USD per hour of all reducers."""
        return self.count * self.price.usd if self.price else None


def bypassed(machine_type: str, gpus: int) -> str:
    """Why NCCL would silently bypass reducers on such a machine; "" if it would use them."""
    if machine_type.startswith(OWN_PLUGIN):
        return f"an {machine_type} brings a network plug-in of its own, and NCCL loads only one"
    if gpus > COLLNET_GPUS:
        return f"NCCL uses reducers on machines with at most {COLLNET_GPUS} GPUs, and an {machine_type} has {gpus}"
    return ""


def sizing(machine_type: str, count: int, machines: Machines, catalog: Catalog) -> Sizing:
    """Size a set of reducers of one type, for the machines that train."""
    gbps = catalog.network_gbps(machine_type) or 1.0
    return Sizing(machine_type, count, gbps, catalog.price(machine_type), cost.break_even_reducers(machines, gbps))


def advised(machines: Machines, total_gbps: float, catalog: Catalog) -> Sizing:
    """The cheapest reducers that together send `total_gbps`, as much as pools 0 and 1, by the documented rule."""
    counts = {name: reducers_needed(1, total_gbps, catalog.network_gbps(name) or 1.0) for name in catalog.reducer_types}
    choices = [sizing(name, count, machines, catalog) for name, count in counts.items()]
    return min(choices, key=lambda choice: math.inf if choice.usd is None else choice.usd)


def all_reduce_options(size: float, machines: Machines, reducers: Sizing) -> AllReduceOptions:
    """The ways to all-reduce `size` bytes among these machines."""
    plain = replace(machines, fabric_gbps=None)  # for an image without the plug-in
    return AllReduceOptions(
        ring=cost.ring(size, plain, machines.members),
        hierarchical=cost.ring(size, plain, machines.count),
        reducers=cost.by_reducers(size, machines, reducers.count, reducers.gbps),
        gpudirect=cost.ring(size, machines, machines.members) if machines.fabric_gbps else None,
    )


def step_seconds(compute: float, communication: float) -> float:
    """Seconds of a step: its compute, and the part of the all-reduce that compute cannot hide."""
    return compute + max(0.0, communication - OVERLAP * compute)


def break_even_compute(ring: float, reduced: float, machines_usd: float, reducers_usd: float) -> float:
    """Seconds of compute per step up to which reducers pay for themselves; 0 where they never do.

    With w and r USD per hour for the machines that train and for the reducers, it is the t at which a step costs the
    same both ways: w x step(t, ring) = (w + r) x step(t, reduced). Above it the all-reduce is hidden, or too small a
    part. Both sides are straight lines in t with one bend each, so the two cases are solved by hand.
    """
    if machines_usd * ring <= (machines_usd + reducers_usd) * reduced:
        return 0.0
    if not reducers_usd:
        return ring / OVERLAP  # from there on the ring is hidden
    shown = 1 - OVERLAP
    both = (machines_usd * ring - (machines_usd + reducers_usd) * reduced) / (shown * reducers_usd)
    if both * OVERLAP <= reduced:
        return both
    return machines_usd * ring / (machines_usd * OVERLAP + reducers_usd)


def usd_per_saved_hour(compute: float, both: AllReduceOptions, machines_usd: float, reducers_usd: float) -> float:
    """USD for each hour of training that reducers save, if they save any; negative where the job also gets cheaper."""
    ring, reduced = step_seconds(compute, both.ring.seconds), step_seconds(compute, both.reducers.seconds)
    return ((machines_usd + reducers_usd) * reduced - machines_usd * ring) / (ring - reduced)

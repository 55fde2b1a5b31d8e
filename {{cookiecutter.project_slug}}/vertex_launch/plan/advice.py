"""Do reduction servers pay for a job? A yes or a no in words, with the figures that decide."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from google.cloud.aiplatform_v1.types import Scheduling

from vertex_launch.plan import allreduce_cost
from vertex_launch.plan.allreduce_cost import Machines
from vertex_launch.plan.formatting import seconds, size, usd
from vertex_launch.plan.pools import Row
from vertex_launch.plan.reducers import (
    OVERLAP,
    AllReduceOptions,
    Sizing,
    break_even_compute,
    bypassed,
    step_seconds,
    usd_per_saved_hour,
)
from vertex_launch.spec import Job

SMALL = 0.05  # of the time to compute; a sum that takes less is no reason to do anything
WORTHWHILE = 0.02  # of a step; one that gets shorter by less is noise


@dataclass(frozen=True)
class Training:
    """A job without its reducers."""

    job: Job
    searches: bool  # it is what the trials of a search run
    pools: Sequence[Row]  # 0 and 1
    machines: Machines
    fabric_gbps: float | None  # of the GPUs' own network
    gradient_bytes: float
    compute: float | None  # seconds of a step without any network
    machines_usd: float | None  # per hour, of the machines that train


@dataclass(frozen=True)
class Case:
    """What a verdict is about: a job and a set of reducers."""

    training: Training
    sizing: Sizing
    sums: AllReduceOptions

    @property
    def what(self) -> str:
        return f"{self.sizing.count} x {self.sizing.machine_type}"

    @property
    def reducers_usd(self) -> float | None:
        return self.sizing.count * self.sizing.price.usd if self.sizing.price else None


@dataclass(frozen=True)
class Verdict:
    """`pays` is None where it depends on what is not known; the other figures are None, too, where they are not."""

    pays: bool | None
    text: str
    break_even_compute: float | None = None  # seconds of computing per step up to which reducers pay for themselves
    usd_per_saved_hour: float | None = None  # negative where the job gets cheaper, too


def verdict(case: Case) -> Verdict:
    """The first reason against reducers, else what they gain and cost."""
    for reason in REASONS:
        text = reason(case)
        if text:
            return Verdict(False, f"No: {text}.")
    return _weighed(case)


def no_gpus(case: Case) -> str:
    if all(row.gpus for row in case.training.pools):
        return ""
    return "reduction servers serve GPUs, and some machines that train have none"


def one_machine(case: Case) -> str:
    if case.training.machines.count > 1:
        return ""
    return "with one machine, gradients never cross the network"


def in_a_search(case: Case) -> str:
    if not case.training.searches:
        return ""
    return "a search may hand the flags of a trial to its reducers, too, which do not take them (trial-reducers)"


def one_kind_of_machine(case: Case) -> str:
    if case.training.job.spec.scheduling.strategy != Scheduling.Strategy.FLEX_START:
        return ""
    return "FLEX_START wants the same machines in every pool, so there can be no CPU machines beside the GPUs"


def own_fabric(case: Case) -> str:
    if case.training.fabric_gbps is None:
        return ""
    kind, ring, reduced = case.training.pools[0].machine_type, case.sums.ring.seconds, case.sums.reducers.seconds
    return (
        f"the GPUs of an {kind} have a network of their own, {case.training.fabric_gbps:g} Gbps by GPUDirect, where a"
        f" ring takes {seconds(ring)}. Reducers are only reached at {case.training.machines.gbps:g} Gbps, and would"
        f" take {seconds(reduced)}; nor can GPUDirect and the reduction server's plug-in be used together"
    )


def not_used(case: Case) -> str:
    reasons = (bypassed(row.machine_type, row.gpus) for row in case.training.pools)
    return next((f"{reason}, so they would be billed and idle" for reason in reasons if reason), "")


def ring_of_two(case: Case) -> str:
    if case.training.machines.members > 2:
        return ""
    return (
        "in a ring of two GPUs each machine already sends the gradients only once,"
        f" {size(case.training.gradient_bytes)}, and cannot send less to reducers"
    )


def too_few(case: Case) -> str:
    ring, reduced = case.sums.ring.seconds, case.sums.reducers.seconds
    if reduced <= ring:
        return ""
    return (
        f"{case.what} are too few: with them the sum takes {seconds(reduced)}, by the ring {seconds(ring)};"
        f" from {case.sizing.break_even:.1f} on they are as fast"
    )


def latency_rules(case: Case) -> str:
    members = case.training.machines.members
    wire, hops = case.sums.ring.seconds, allreduce_cost.hops_seconds(members)
    if wire > hops:
        return ""
    return (
        f"the gradients are too small: the wire carries their {size(case.training.gradient_bytes)} in {seconds(wire)},"
        f" while the {2 * (members - 1)} hops of a ring of {members} take about {seconds(hops)}. Latency rules there;"
        " bandwidth, which reducers save, does not matter"
    )


def too_small(case: Case) -> str:
    if case.training.compute is None or case.sums.ring.seconds > SMALL * case.training.compute:
        return ""
    return (
        f"the gradients are too small: a ring sums their {size(case.training.gradient_bytes)} in"
        f" {seconds(case.sums.ring.seconds)}, and computing a step takes {seconds(case.training.compute)}"
    )


def hidden(case: Case) -> str:
    if case.training.compute is None or case.sums.ring.seconds > OVERLAP * case.training.compute:
        return ""
    return (
        f"the model is bound by computing. The ring takes {seconds(case.sums.ring.seconds)}, of which the backward"
        f" pass hides up to {seconds(OVERLAP * case.training.compute)}, so faster sums change nothing"
    )


def hardly_faster(case: Case) -> str:
    if case.training.compute is None or _gain(case, case.training.compute) >= WORTHWHILE:
        return ""
    ring = step_seconds(case.training.compute, case.sums.ring.seconds)
    return f"a step of {seconds(ring)} would get shorter by {_gain(case, case.training.compute):.1%} at best"


REASONS: tuple[Callable[[Case], str], ...] = (
    no_gpus,
    one_machine,
    in_a_search,
    one_kind_of_machine,
    own_fabric,
    not_used,
    ring_of_two,
    too_few,
    latency_rules,
    too_small,
    hidden,
    hardly_faster,
)


def _weighed(case: Case) -> Verdict:
    """Reducers are faster, if the step is not bound by computing; do they pay?"""
    limit = _break_even(case)
    ring, reduced = case.sums.ring.seconds, case.sums.reducers.seconds
    sums = f"{case.what} shorten the sum from {seconds(ring)} to {seconds(reduced)}"
    if case.training.compute is None:
        return Verdict(None, f"It depends: {sums}. {_condition(limit, ring)}", limit)
    gain = f"{sums}, and a step by {_gain(case, case.training.compute):.0%}"
    extra = _usd_per_saved_hour(case)
    if extra is None:
        return Verdict(None, f"It depends: {gain}; their price is not known here.", limit)
    if extra <= 0:
        return Verdict(True, f"Yes: {gain}, which saves more than they cost. {_condition(limit, ring)}", limit, extra)
    text = (
        f"Only if time is worth it: {gain}, but each hour that they save costs {usd(extra)}. {_condition(limit, ring)}"
    )
    return Verdict(None, text, limit, extra)


def _condition(limit: float | None, ring: float) -> str:
    fastest = f"Above {seconds(ring / OVERLAP)} the ring is hidden, and they change nothing."
    if limit is None:
        return fastest
    if not limit:
        return f"They never pay for themselves. {fastest}"
    return f"They pay for themselves if computing takes less than {seconds(limit)} per step. {fastest}"


def _break_even(case: Case) -> float | None:
    if case.training.machines_usd is None or case.reducers_usd is None:
        return None
    ring, reduced = case.sums.ring.seconds, case.sums.reducers.seconds
    return break_even_compute(ring, reduced, case.training.machines_usd, case.reducers_usd)


def _usd_per_saved_hour(case: Case) -> float | None:
    if case.training.compute is None or case.training.machines_usd is None or case.reducers_usd is None:
        return None
    return usd_per_saved_hour(case.training.compute, case.sums, case.training.machines_usd, case.reducers_usd)


def _gain(case: Case, compute: float) -> float:
    """The share of a step that reducers save."""
    ring, reduced = (step_seconds(compute, one.seconds) for one in (case.sums.ring, case.sums.reducers))
    return 1 - reduced / ring

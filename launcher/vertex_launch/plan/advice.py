"""Do reduction servers pay for a job? A yes or a no in words, with the figures that decide."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain

from google.cloud.aiplatform_v1.types.custom_job import Scheduling

from vertex_launch.job.spec import Job
from vertex_launch.plan import pools, reducers
from vertex_launch.plan.allreduce_cost import HOP, Machines
from vertex_launch.plan.formatting import seconds, size, usd
from vertex_launch.plan.pools import Row, Trials
from vertex_launch.plan.reducers import OVERLAP, AllReduceOptions, Sizing, step_seconds

SAME = 0.95  # a speed over another above which they are about the same
SMALL = 0.05  # of the compute time; a shorter all-reduce is no reason to do anything
WORTHWHILE = 0.02  # of a step; a smaller gain is noise


@dataclass(frozen=True)
class Training:
    """A job, and what it costs and takes without its reducers."""

    job: Job
    trials: Trials | None  # of a search, which run the job
    rows: tuple[Row, ...]  # of all pools
    gradient_bytes: float
    compute: float | None  # seconds of a step without any network
    image_says: str = ""  # whether NCCL can use reducers there, as its build has found; "" if that is not known

    @property
    def pools(self) -> tuple[Row, ...]:
        """0 and 1."""
        return pools.training(self.rows)

    @property
    def machines(self) -> Machines:
        return pools.machines(self.pools)

    @property
    def usd(self) -> float | None:
        """USD per hour of the machines, without the reducers."""
        price = pools.price(self.pools)
        return price.usd if price else None

    def least_compute(self, communication: float) -> float:
        """Seconds of compute per step from which on the machines are faster than one alone."""
        return communication / (pools.scale(self.pools) * SAME - (1 - OVERLAP))


@dataclass(frozen=True)
class Verdict:
    """`pays` is None where it depends on unknown figures; the other figures are None where they are unknown."""

    pays: bool | None
    text: str
    break_even_compute: float | None = None  # seconds of compute per step up to which reducers pay for themselves
    usd_per_saved_hour: float | None = None  # negative where the job also gets cheaper


def verdict(training: Training, sizing: Sizing, all_reduce: AllReduceOptions) -> Verdict:
    """The first reason against a set of reducers, else what they gain and cost."""
    for reason in chain(_reasons_of_machines(training, all_reduce), _reasons_of_time(training, sizing, all_reduce)):
        return Verdict(False, f"No: {reason}.")
    return _weighed(training, sizing, all_reduce)


def are_idle(training: Training) -> bool:
    """Whether NCCL would pass by any reducers, so that they change nothing but the price."""
    rows, of_image = training.pools, "idle" in training.image_says
    passed_by = any(not row.gpus or reducers.bypassed(row.machine_type, row.gpus) for row in rows)
    return passed_by or of_image or training.machines.fabric_gbps is not None


def _reasons_of_machines(training: Training, all_reduce: AllReduceOptions) -> Iterator[str]:
    machines = training.machines
    if not all(row.gpus for row in training.pools):
        yield "reduction servers serve GPUs, and some machines that train have none"
    if machines.count == 1:
        yield "with one machine, gradients never cross the network"
    if training.trials:
        yield "a search may hand the flags of a trial to its reducers, too, which do not take them (trial-reducers)"
    if training.job.spec.scheduling.strategy == Scheduling.Strategy.FLEX_START:
        yield "FLEX_START wants the same machines in every pool, so there can be no CPU machines beside the GPUs"
    if all_reduce.gpudirect:
        yield (
            f"the GPUs of an {training.pools[0].machine_type} have a network of their own,"
            f" {machines.fabric_gbps:g} Gbps by GPUDirect. With its NCCL plug-in in the image, a ring takes"
            f" {seconds(all_reduce.gpudirect.seconds)} there, and reducers would take"
            f" {seconds(all_reduce.reducers.seconds)}. NCCL loads only one plug-in, that one or the reduction server's"
        )
    for row in training.pools:
        if reason := reducers.bypassed(row.machine_type, row.gpus):
            yield f"{reason}, so they would be billed and idle"
    if "idle" in training.image_says:
        yield f"by the image that is here, {training.image_says}"
    if machines.members <= 2:
        once = f"the gradients only once, {size(training.gradient_bytes)}"
        yield f"in a ring of two GPUs each machine already sends {once}, and cannot send less to reducers"


def _reasons_of_time(training: Training, sizing: Sizing, all_reduce: AllReduceOptions) -> Iterator[str]:
    compute, members, gradients = training.compute, training.machines.members, size(training.gradient_bytes)
    ring, reduced, wire = all_reduce.ring.seconds, all_reduce.reducers.seconds, seconds(all_reduce.ring.seconds)
    if reduced > ring:
        yield (
            f"{sizing} are too few: with them the all-reduce takes {seconds(reduced)}, by the ring {wire};"
            f" from {sizing.break_even:.1f} on they are as fast"
        )
    hops = 2 * (members - 1)
    if ring <= hops * HOP:  # the time of the hops, however little is sent
        yield (
            f"the gradients are too small: the wire carries their {gradients} in {wire}, while the"
            f" {hops} hops of a ring of {members} take about {seconds(hops * HOP)}. Latency rules there;"
            " bandwidth, which reducers save, does not matter"
        )
    if compute is None:
        return
    if compute < training.least_compute(reduced):
        yield f"with {sizing}, too, the {training.machines.count} machines are no faster than one alone"
    if ring <= SMALL * compute:
        took = f"a ring all-reduces their {gradients} in {wire}, and computing a step takes {seconds(compute)}"
        yield f"the gradients are too small: {took}"
    if ring <= OVERLAP * compute:
        yield (
            f"the model is bound by computing. The ring takes {wire}, of which the backward pass hides up to"
            f" {seconds(OVERLAP * compute)}, so a faster all-reduce changes nothing"
        )
    if (gain := all_reduce.gain(compute)) < WORTHWHILE:
        yield f"a step of {seconds(step_seconds(compute, ring))} would get shorter by {gain:.1%} at best"


def _weighed(training: Training, sizing: Sizing, all_reduce: AllReduceOptions) -> Verdict:
    """Reducers are faster, if the step is not bound by computing; do they pay?"""
    ring, reduced = all_reduce.ring.seconds, all_reduce.reducers.seconds
    gain = f"{sizing} shorten the all-reduce from {seconds(ring)} to {seconds(reduced)}"
    prices = None if training.usd is None or sizing.usd is None else (training.usd, sizing.usd)
    limit = reducers.break_even_compute(ring, reduced, *prices) if prices else None
    least = training.least_compute(ring)
    condition = _condition(limit, least, ring)
    if training.compute is None:
        return Verdict(None, f"It depends: {gain}. {condition}", limit)
    gain += f", and a step by {all_reduce.gain(training.compute):.0%}"
    if prices is None:
        return Verdict(None, f"It depends: {gain}; their price is not known here.")
    extra = reducers.usd_per_saved_hour(training.compute, all_reduce, *prices)
    if extra <= 0 and training.compute >= least:
        return Verdict(True, f"Yes: {gain}, which saves more than they cost. {condition}", limit, extra)
    but = f"each hour that they save costs {usd(extra)}" if extra > 0 else "one machine alone is as fast as the ring"
    return Verdict(None, f"Only if time is worth it: {gain}, but {but}. {condition}", limit, extra)


def _condition(limit: float | None, least: float, ring: float) -> str:
    hidden = f"Above {seconds(ring / OVERLAP)} the ring is hidden, and they change nothing."
    if limit is None:
        return hidden
    pays = f"pay for themselves if computing takes less than {seconds(limit)} per step and more than {seconds(least)}"
    return f"They {pays if least < limit else 'never pay for themselves'}. {hidden}"

"""Decides whether reduction servers are worth their price, and explains the decision with times and prices."""

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

SAME = 0.95  # ratio of two speeds above which they count as equal
SMALL = 0.05  # share of the compute time below which an all-reduce doesn't matter
WORTHWHILE = 0.02  # share of a step below which a gain is noise


@dataclass(frozen=True)
class Training:
    """A training job, with its cost and step time without reducers."""

    job: Job
    trials: Trials | None  # of a tuning job, which run the job
    rows: tuple[Row, ...]  # of all pools
    gradient_bytes: float
    compute: float | None  # seconds per step, without the network
    image_says: str = ""  # message from the image's build on whether NCCL can use reducers; "" if unknown

    @property
    def pools(self) -> tuple[Row, ...]:
        """The rows of pools 0 and 1, which train the model."""
        return pools.training(self.rows)

    @property
    def machines(self) -> Machines:
        return pools.machines(self.pools)

    @property
    def usd(self) -> float | None:
        """The price of the machines in USD per hour, excluding the reducers."""
        price = pools.price(self.pools)
        return price.usd if price else None

    def least_compute(self, communication: float) -> float:
        """Return the compute time per step, in seconds, above which all machines together outperform one machine."""
        return communication / (pools.scale(self.pools) * SAME - (1 - OVERLAP))


@dataclass(frozen=True)
class Verdict:
    """A decision for or against reducers.

    If the decision depends on unknown figures or on the value of the time saved, `pays` is None.
    """

    pays: bool | None
    text: str
    break_even_compute: float | None = None  # seconds of compute per step up to which reducers pay for themselves
    usd_per_saved_hour: float | None = None  # negative if the job also gets cheaper


def verdict(training: Training, sizing: Sizing, all_reduce: AllReduceOptions) -> Verdict:
    """Return a verdict with the first reason against a set of reducers.

    If there is no reason against the reducers, return a verdict with their gain and cost.
    """
    for reason in chain(_reasons_of_machines(training, all_reduce), _reasons_of_time(training, sizing, all_reduce)):
        return Verdict(False, f"No: {reason}.")
    return _weighed(training, sizing, all_reduce)


def are_idle(training: Training) -> bool:
    """Return whether NCCL would bypass reducers. In this case, reducers would only increase the price."""
    rows, of_image = training.pools, "idle" in training.image_says
    passed_by = any(not row.gpus or reducers.bypassed(row.machine_type, row.gpus) for row in rows)
    return passed_by or of_image or training.machines.fabric_gbps is not None


def _reasons_of_machines(training: Training, all_reduce: AllReduceOptions) -> Iterator[str]:
    machines = training.machines
    if not all(row.gpus for row in training.pools):
        yield "reduction servers require GPUs, but some training machines don't have a GPU"
    if machines.count == 1:
        yield "with one machine, gradients don't cross the network"
    if training.trials:
        yield "a tuning job might also pass a trial's flags to the reducers, which reject them (trial-reducers)"
    if training.job.spec.scheduling.strategy == Scheduling.Strategy.FLEX_START:
        yield "FLEX_START requires the same machine type in every pool, so the reducers can't use CPU machines"
    if all_reduce.gpudirect:
        yield (
            f"the GPUs of an {training.pools[0].machine_type} have their own {machines.fabric_gbps:g} Gbps network."
            f" A ring takes {seconds(all_reduce.gpudirect.seconds)} with GPUDirect's plug-in, but reducers take"
            f" {seconds(all_reduce.reducers.seconds)}. NCCL loads only one of the two plug-ins"
        )
    for row in training.pools:
        if reason := reducers.bypassed(row.machine_type, row.gpus):
            yield f"{reason}, so reducers would be billed but idle"
    if "idle" in training.image_says:
        yield f"according to the local image, {training.image_says}"
    if machines.members <= 2:
        once = f"the gradients ({size(training.gradient_bytes)}) only once"
        yield f"in a ring of two GPUs, each machine already sends {once}, so reducers can't save traffic"


def _reasons_of_time(training: Training, sizing: Sizing, all_reduce: AllReduceOptions) -> Iterator[str]:
    compute, members, gradients = training.compute, training.machines.members, size(training.gradient_bytes)
    ring, reduced, wire = all_reduce.ring.seconds, all_reduce.reducers.seconds, seconds(all_reduce.ring.seconds)
    if reduced > ring:
        yield (
            f"{sizing} aren't enough: the all-reduce takes {seconds(reduced)} with them and {wire} with a ring."
            f" With {sizing.break_even:.1f} or more reducers, the all-reduce is at least as fast as with a ring"
        )
    hops = 2 * (members - 1)
    if ring <= hops * HOP:  # the time of the hops, however little is sent
        yield (
            f"the gradients ({gradients}) are too small for reducers: their transfer takes {wire}, but the latency"
            f" of {hops} hops in a ring of {members} GPUs is about {seconds(hops * HOP)}. Reducers save bandwidth,"
            " not latency"
        )
    if compute is None:
        return
    if compute < training.least_compute(reduced):
        yield f"even with {sizing}, the {training.machines.count} machines aren't faster than one machine"
    if ring <= SMALL * compute:
        took = f"a ring all-reduces {gradients} in {wire}, and the computation of a step takes {seconds(compute)}"
        yield f"the gradients are too small for reducers: {took}"
    if ring <= OVERLAP * compute:
        yield (
            f"the job is compute-bound. The ring takes {wire}, and up to {seconds(OVERLAP * compute)} of an all-reduce"
            " overlaps with the backward pass, so a faster all-reduce doesn't shorten the step"
        )
    if (gain := all_reduce.gain(compute)) < WORTHWHILE:
        yield f"reducers would shorten a step of {seconds(step_seconds(compute, ring))} by at most {gain:.1%}"


def _weighed(training: Training, sizing: Sizing, all_reduce: AllReduceOptions) -> Verdict:
    """Return the verdict on reducers that are faster than a ring, based on their gain and price."""
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
        return Verdict(None, f"It depends: {gain}, but their price isn't known.")
    extra = reducers.usd_per_saved_hour(training.compute, all_reduce, *prices)
    if extra <= 0 and training.compute >= least:
        return Verdict(True, f"Yes: {gain}, which saves more than they cost. {condition}", limit, extra)
    but = f"each hour saved costs {usd(extra)}" if extra > 0 else "one machine is as fast as the ring"
    return Verdict(None, f"Only if the time saved is worth the price: {gain}, but {but}. {condition}", limit, extra)


def _condition(limit: float | None, least: float, ring: float) -> str:
    hidden = f"If a step's compute time is longer than {seconds(ring / OVERLAP)}, reducers don't shorten the step."
    if limit is None:
        return hidden
    pays = f"pay for themselves if a step's compute time is between {seconds(least)} and {seconds(limit)}"
    return f"Reducers {pays if least < limit else 'never pay for themselves'}. {hidden}"

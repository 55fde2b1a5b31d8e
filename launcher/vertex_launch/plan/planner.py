"""Plans a job's machines, price, memory, and step time, and determines whether reducers are worth their price."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import date

from vertex_launch.errors import FaultError, Finding
from vertex_launch.facts.catalog import Accelerator, Catalog, Price
from vertex_launch.job.spec import Job, TuningJob, trial
from vertex_launch.plan import advice, memory, pools, reducers, scaling
from vertex_launch.plan.advice import Training, Verdict
from vertex_launch.plan.allreduce_cost import AllReduce, Machines
from vertex_launch.plan.failures import Failures
from vertex_launch.plan.memory import Memory
from vertex_launch.plan.pools import Quota, Row, Trials
from vertex_launch.plan.reducers import AllReduceOptions, Sizing
from vertex_launch.plan.scaling import Curve, Load, Point
from vertex_launch.plan.workload import Workload
from vertex_launch.settings import Settings

MFU = 0.4  # model FLOPs utilization: the share of a GPU's peak that training reaches; 0.3 to 0.5 is usual
SHORT = 0.005  # seconds; launching hundreds of kernels takes about that long


@dataclass(frozen=True)
class Compute:
    """The compute time of one step in seconds, excluding communication, and its source."""

    seconds: float
    how: str
    estimated: bool = False

    @property
    def counts(self) -> bool:
        """True if the compute time is reliable. An estimate ignores kernel launches, which dominate short steps."""
        return not self.estimated or self.seconds >= SHORT


@dataclass(frozen=True)
class Option:
    """One set of reducers, and its effect on the job."""

    sizing: Sizing
    all_reduce: AllReduceOptions  # its field `reducers` describes this set
    verdict: Verdict


@dataclass(frozen=True)
class Needs:
    """The machines, price, and quotas of a job. These needs don't depend on the program that the job runs.

    If a price is unknown, `price` is None.
    """

    name: str
    region: str
    persistent: str  # the ID of the persistent resource on which the job runs, or ""
    trials: Trials | None  # of a tuning job; the plan describes one trial, except for price and quotas
    rows: tuple[Row, ...]
    price: Price | None  # of all machines together, per hour
    quotas: tuple[Quota, ...]
    quota_command: str
    compiled: date  # date of the facts that the plan uses
    uncertain: tuple[str, ...]  # among these facts
    missing: str  # why memory and time aren't known; "" in a Plan

    @property
    def at_once(self) -> int:
        """The number of trials that run at the same time. If the job isn't a tuning job, the number is 1."""
        return self.trials.at_once if self.trials else 1


@dataclass(frozen=True)
class Plan(Needs):
    """All figures for a job that hasn't been submitted yet. If a figure is unknown, its value is None."""

    machines: Machines  # that train
    workload: Workload | None
    gradient_bytes: float
    compute: Compute | None
    memory: Memory | None  # of one GPU
    remedy: str  # the change that would make the job fit; "" if it fits
    advised: Option
    present: Option | None  # the reducers in the file, if there are any
    all_reduce: AllReduce  # with the reducers in the file unless they are idle, otherwise with a ring
    here: Point | None  # the job as it is in the file
    curves: tuple[Curve, ...]
    failures: Failures | None = None  # if the mean time between failures is known

    @property
    def known_compute(self) -> float | None:
        """The compute time of one step in seconds. If the time isn't reliable, the value is None."""
        return self.compute.seconds if self.compute and self.compute.counts else None

    @property
    def step_seconds(self) -> float | None:
        """The time of one step in seconds, including communication. If the time isn't reliable, the value is None."""
        compute = self.known_compute
        return reducers.step_seconds(compute, self.all_reduce.seconds) if compute else None

    @property
    def alone(self) -> float | None:
        """The throughput of the strongest machine alone, in samples per second, excluding all-reduces."""
        return self.here.samples_per_second / self.over_one if self.here and self.over_one else None

    @property
    def over_one(self) -> float | None:
        """The ratio of the job's throughput to that of the strongest machine alone."""
        compute, step = self.known_compute, self.step_seconds
        return pools.scale(self.rows) * compute / step if compute and step else None

    @property
    def hierarchical_ring(self) -> str:
        """A sentence that explains the hierarchical ring for the machines of this plan."""
        if self.machines.members == self.machines.count:
            return "With at most one GPU per machine, a hierarchical ring is the same as a flat ring."
        return "A hierarchical ring first adds gradients inside each machine. Then one GPU per machine joins a ring."

    @property
    def options(self) -> tuple[Option, ...]:
        """The reducers in the job file and the recommended ones, without duplicates."""
        return tuple(dict.fromkeys((self.present or self.advised, self.advised)))


def plan(
    subject: Job | TuningJob,
    settings: Settings,
    workload: Workload | None,
    *,
    gradient_bytes: float | None = None,
    compute: Compute | None = None,
    mfu: float = MFU,
    image_says: str = "",
    missing: str = "",
) -> Needs:
    """Return the Plan of a job or of one trial. If `missing` describes missing information, return only the Needs.

    `gradient_bytes` overrides the workload's value, and `compute` overrides the estimate that is based on `mfu`.
    `image_says` is the message about reducers that the image's build printed. Raises FaultError if the job doesn't have
    training machines or if a count is below 1.
    """
    job, trials = trial(subject), pools.trials(subject)
    rows = pools.rows(job, settings.catalog)
    if faults := [*_faults(rows, trials)]:
        raise FaultError(*faults, file=job.path)
    needs = _needs(job, trials, rows, settings, missing)
    if needs.missing:
        return needs
    size = gradient_bytes if gradient_bytes is not None else float(workload.gradient_bytes if workload else 0)
    compute = compute or _estimated(workload, rows, settings.catalog, mfu)
    known_compute = compute.seconds if compute and compute.counts else None
    training = Training(job, trials, rows, size, known_compute, image_says)
    return _plan(needs, training, settings.catalog, workload, compute)


def _needs(job: Job, trials: Trials | None, rows: tuple[Row, ...], settings: Settings, missing: str) -> Needs:
    at_once = trials.at_once if trials else 1
    unknown = (
        f"the network speed of {row} is unknown; set [machines.{row.machine_type}] in vertex.toml"
        for row in rows
        if not row.gbps
    )
    return Needs(
        name=str(job.path),
        region=settings.region,
        persistent=job.spec.persistent_resource_id,
        trials=trials,
        rows=rows,
        price=pools.price(rows, at_once),
        quotas=pools.quotas(job, settings, at_once),
        quota_command=pools.quota_command(settings),
        compiled=settings.catalog.compiled,
        uncertain=tuple(dict.fromkeys(_uncertain(rows, settings.catalog))),
        missing=next(unknown, missing),
    )


def _faults(rows: Sequence[Row], trials: Trials | None) -> Iterator[Finding]:
    if trials and trials.at_once < 1:
        fault = f"{trials.count} trials, {trials.at_once} in parallel, can't be planned"
        yield Finding("", fault, "set maxTrialCount and parallelTrialCount to 1 or more")
    if not pools.training(rows):
        yield Finding("workerPoolSpecs", "no machine trains", "specify the chief in pool 0")
    for row in rows:
        if row.count < 1:
            yield Finding(f"workerPoolSpecs[{row.pool}].replicaCount", f"is {row.count}", "set it to 1 or more")


def _plan(
    needs: Needs, training: Training, catalog: Catalog, workload: Workload | None, compute: Compute | None
) -> Plan:
    machines, rows = training.machines, training.rows
    total_gbps = sum(row.count * (row.gbps or 0) for row in training.pools)
    advised = _option(training, reducers.advised(machines, total_gbps, catalog))
    ours = next((row for row in rows if row.role == "reducers"), None)
    present = _option(training, reducers.sizing(ours.machine_type, ours.count, machines, catalog)) if ours else None
    idle = advice.are_idle(training)
    all_reduce = present.all_reduce.reducers if present and not idle else advised.all_reduce.ring
    card = min(_cards(rows, catalog), key=lambda card: card.memory_gb, default=None)
    held = (workload, machines.members, card) if workload and card else None
    load, price = _load(training, workload), pools.price(rows)
    usd = price.usd if price else math.nan
    return Plan(
        **vars(needs),
        machines=machines,
        workload=workload,
        gradient_bytes=training.gradient_bytes,
        compute=compute,
        memory=memory.memory(*held) if held else None,
        remedy=memory.remedy(*held) if held else "",
        advised=advised,
        present=present,
        all_reduce=all_reduce,
        here=scaling.point(load, machines.count, all_reduce.seconds, usd) if load else None,
        curves=_curves(training, load, advised.sizing, idle=idle),
    )


def _option(training: Training, sizing: Sizing) -> Option:
    options = reducers.all_reduce_options(training.gradient_bytes, training.machines, sizing)
    return Option(sizing, options, advice.verdict(training, sizing, options))


def _estimated(workload: Workload | None, rows: Sequence[Row], catalog: Catalog, mfu: float) -> Compute | None:
    card = min(_cards(rows, catalog), key=lambda card: card.tflops, default=None)
    if workload is None or card is None:
        return None
    flops = workload.flops_per_sample * workload.global_batch / pools.machines(rows).members  # of one GPU
    how = f"estimated: {mfu:.0%} of {card.tflops:g} TFLOPS, the peak of {card.name} in {card.precision}"
    return Compute(flops / (card.tflops * 1e12 * mfu), how, estimated=True)


def _uncertain(rows: Sequence[Row], catalog: Catalog) -> Iterator[str]:
    for row in rows:
        if catalog.network_certainty(row.machine_type, row.accelerator, row.gpus) == "uncertain":
            gpus = f" with {row.gpus} x {row.accelerator}" if row.gpus else ""
            yield f"the network of {row.machine_type}{gpus}"
        if row.price and row.price.certainty == "uncertain":
            yield f"the price of {row.machine_type}"


def _load(training: Training, workload: Workload | None) -> Load | None:
    """Return the load of one step on one machine, excluding reducers.

    If the batch size or the compute time is unknown, return None.
    """
    if workload is None or training.compute is None:
        return None
    count, usd = training.machines.count, math.nan if training.usd is None else training.usd
    return Load(workload.global_batch / count, training.compute, training.gradient_bytes, usd / count)


def _curves(training: Training, load: Load | None, sizing: Sizing, *, idle: bool) -> tuple[Curve, ...]:
    if load is None or training.usd is None or sizing.price is None or pools.differ(training.rows):
        return ()
    drawn = scaling.curves(load, training.machines, sizing)
    return tuple(curve for curve in drawn if not idle or curve.way != "reducers")


def _cards(rows: Sequence[Row], catalog: Catalog) -> list[Accelerator]:
    """Return the GPU types of the training machines.

    If a GPU type is unknown or a machine doesn't have a GPU, return an empty list.
    """
    cards = [catalog.accelerators.get(row.accelerator) for row in pools.training(rows)]
    gpus = [card for card in cards if card]
    return gpus if len(gpus) == len(cards) else []

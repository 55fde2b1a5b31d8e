"""The machines of a job: how many, how they are connected, what they cost, and which quota they need."""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from google.cloud.aiplatform_v1.types.custom_job import Scheduling

from vertex_launch.facts.catalog import Catalog, Price, total
from vertex_launch.job.job_resource import Resource
from vertex_launch.job.spec import Job, Pool, TuningJob, trial
from vertex_launch.plan.allreduce_cost import Machines
from vertex_launch.settings import Settings

PREEMPTIBLE = (Scheduling.Strategy.SPOT, Scheduling.Strategy.FLEX_START)
ROLES = ("chief", "workers", "servers", "evaluators")  # of pools, by position


@dataclass(frozen=True)
class Row:
    """One pool that holds machines."""

    pool: int
    role: str
    count: int
    machine_type: str
    accelerator: str  # "" without GPUs
    gpus: int  # of one machine
    gbps: float | None  # of one machine; None if unknown
    fabric_gbps: float | None  # of its GPUs' own network, if they have one
    price: Price | None  # of one machine per hour; None if unknown

    def __str__(self) -> str:
        return f"{self.count} x {self.machine_type}"

    @property
    def usd(self) -> float | None:
        """USD per hour of the pool."""
        return self.count * self.price.usd if self.price else None


@dataclass(frozen=True)
class Trials:
    """The number of times that a search runs its job."""

    count: int
    at_once: int


@dataclass(frozen=True)
class Quota:
    """One quota that a job uses up while it runs; `metric` is "" where its name is not known."""

    metric: str
    amount: int
    what: str


def rows(job: Job, catalog: Catalog) -> tuple[Row, ...]:
    """Return a row for each pool that holds machines."""
    return tuple(_row(pool, catalog) for pool in job.pools)


def training(all_rows: Sequence[Row]) -> tuple[Row, ...]:
    """Pools 0 and 1."""
    return tuple(row for row in all_rows if row.role in ROLES[:2])


def machines(all_rows: Sequence[Row]) -> Machines:
    """The machines that train; an all-reduce waits for the slowest network among them."""
    train = training(all_rows)
    count, gpus = sum(row.count for row in train), sum(row.count * max(row.gpus, 1) for row in train)
    gbps, fabric_gbps = min(row.gbps or 0 for row in train), min(row.fabric_gbps or 0 for row in train)
    return Machines(count, gpus / count, gbps, fabric_gbps or None)


def scale(all_rows: Sequence[Row]) -> float:
    """The speed of the machines that train over that of the one with most GPUs, if an all-reduce took no time."""
    return machines(all_rows).members / max(max(row.gpus, 1) for row in training(all_rows))


def differ(all_rows: Sequence[Row]) -> bool:
    """Whether machines that train are of more than one kind."""
    return len({(row.machine_type, row.accelerator, row.gpus) for row in training(all_rows)}) > 1


def trials(job: Job | TuningJob) -> Trials | None:
    """Return the number of trials; None for a job that is no search."""
    if not isinstance(job, TuningJob):
        return None
    most = job.spec.max_trial_count
    return Trials(most, max(1, min(most, job.spec.parallel_trial_count)))


def price(some_rows: Sequence[Row], at_once: int = 1) -> Price | None:
    """The price per hour of these machines, for so many trials at once; None if one of them has no known price."""
    return total([(at_once * row.count, row.price) for row in some_rows])


def quotas(job: Job, settings: Settings, at_once: int = 1) -> tuple[Quota, ...]:
    """The amounts of each quota that the job, or so many trials of it, need, GPUs first.

    Source: Vertex AI, "Quotas and limits"; a SPOT or FLEX_START job uses the preemptible metrics.
    """
    catalog, preemptible = settings.catalog, job.spec.scheduling.strategy in PREEMPTIBLE
    cards: Counter[tuple[str, str]] = Counter()  # last word of the metric, and the noun that it counts -> amount
    cpus: Counter[tuple[str, str]] = Counter()
    for pool in job.pools:
        count = at_once * pool.replica_count
        if gpu := catalog.accelerators.get(pool.accelerator):
            cards[gpu.quota, f"{gpu.name} GPUs"] += count * pool.accelerator_count
        machine = catalog.machine(pool.machine_type)
        if machine and machine.tpu:
            slice = pool.spec.machine_spec.tpu_topology or str(pool.accelerator_count)
            cards[machine.quota, f"{machine.tpu} chips"] += count * math.prod(map(int, slice.split("x")))
        elif machine:
            family = "N1 and E2" if machine.quota == "cpus" else f"{machine.family.upper()} machines"
            cpus[machine.quota, f"vCPUs of {family}"] += count * machine.vcpus
    return tuple(
        Quota(catalog.quota_metric(word, preemptible) if word else "", amount, noun)
        for (word, noun), amount in (*cards.items(), *cpus.items())
    )


def needed(job: Job | TuningJob, settings: Settings) -> tuple[Quota, ...]:
    """The quotas with a known name that a job uses up, or all trials that a search runs at once."""
    search = trials(job)
    wanted = quotas(trial(job), settings, search.at_once if search else 1)
    return tuple(quota for quota in wanted if quota.metric)


def limits(wanted_quotas: Iterable[Quota], infos: Iterable[Resource], region: str) -> Iterator[tuple[Quota, int]]:
    """Yield each quota that has a limit in this region, with the limit; source: Cloud Quotas API v1, quotaInfos."""
    wanted = {quota.metric: quota for quota in wanted_quotas}
    for info in infos if wanted else ():
        if quota := wanted.pop(info.get("metric", ""), None):
            entries = info.get("dimensionsInfos", ())
            values = [int(entry.get("details", {}).get("value", 0)) for entry in entries if region in _regions(entry)]
            yield from ((quota, value) for value in values[:1] if value >= 0)  # below 0: without a limit
        if not wanted:
            return


def _regions(entry: Resource) -> Sequence[str]:
    return (*entry.get("applicableLocations", ()), entry.get("dimensions", {}).get("region"))


def quota_command(settings: Settings) -> str:
    """The gcloud line that shows what the project has of these quotas, by region."""
    which = f"--consumer=projects/{settings.project or 'PROJECT'} --filter='metric:custom_model_training'"
    return f"gcloud alpha services quota list --service=aiplatform.googleapis.com {which}"


def more_command(metric: str, settings: Settings, amount: int | str = "COUNT") -> str:
    """The gcloud line that asks for so much of a metric in the region; it looks up the ID of the metric's quota."""
    of = f"--service={metric.partition('/')[0]} --project={settings.project or 'PROJECT'}"
    id = f"$(gcloud beta quotas info list {of} --filter=metric={metric} --format='value(quotaId)')"
    wanted = f"--preferred-value={amount} --dimensions=region={settings.region or 'REGION'}"
    return f'gcloud beta quotas preferences create {of} --quota-id="{id}" {wanted}'


def role(pool: Pool) -> str:
    """The name of what its machines do: `workers`, `reducers`."""
    return "reducers" if pool.reduces else ROLES[min(pool.index, len(ROLES) - 1)]


def _row(pool: Pool, catalog: Catalog) -> Row:
    kind = pool.machine_type, pool.accelerator, pool.accelerator_count
    machine = catalog.machine(pool.machine_type)
    speeds = catalog.network_gbps(*kind), machine.fabric_gbps if machine else None
    return Row(pool.index, role(pool), pool.replica_count, *kind, *speeds, catalog.price(*kind))

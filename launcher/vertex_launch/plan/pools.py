"""Computes the number, network speed, and price of a job's machines, and the quotas that the job needs."""

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
    """The machines of one worker pool."""

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
        """The price of the pool in USD per hour."""
        return self.count * self.price.usd if self.price else None


@dataclass(frozen=True)
class Trials:
    """The number of trials of a tuning job, in total and in parallel."""

    count: int
    at_once: int


@dataclass(frozen=True)
class Quota:
    """A quota that a running job uses. If the name of the quota's metric is unknown, `metric` is ""."""

    metric: str
    amount: int
    what: str


def rows(job: Job, catalog: Catalog) -> tuple[Row, ...]:
    """Return a row for each worker pool that has machines."""
    return tuple(_row(pool, catalog) for pool in job.pools)


def training(all_rows: Sequence[Row]) -> tuple[Row, ...]:
    """Return the rows of pools 0 and 1, which train the model."""
    return tuple(row for row in all_rows if row.role in ROLES[:2])


def machines(all_rows: Sequence[Row]) -> Machines:
    """Return the training machines, with the network speed of the slowest one, because an all-reduce waits for it."""
    train = training(all_rows)
    count, gpus = sum(row.count for row in train), sum(row.count * max(row.gpus, 1) for row in train)
    gbps, fabric_gbps = min(row.gbps or 0 for row in train), min(row.fabric_gbps or 0 for row in train)
    return Machines(count, gpus / count, gbps, fabric_gbps or None)


def scale(all_rows: Sequence[Row]) -> float:
    """Return the ideal speedup over the machine with the most GPUs, assuming that an all-reduce is instantaneous."""
    return machines(all_rows).members / max(max(row.gpus, 1) for row in training(all_rows))


def differ(all_rows: Sequence[Row]) -> bool:
    """Return whether the training machines have different types."""
    return len({(row.machine_type, row.accelerator, row.gpus) for row in training(all_rows)}) > 1


def trials(job: Job | TuningJob) -> Trials | None:
    """Return the number of trials of a tuning job. If the job isn't a tuning job, return None."""
    if not isinstance(job, TuningJob):
        return None
    most = job.spec.max_trial_count
    return Trials(most, max(1, min(most, job.spec.parallel_trial_count)))


def price(some_rows: Sequence[Row], at_once: int = 1) -> Price | None:
    """Return the hourly price of these machines for `at_once` parallel trials. If a price is unknown, return None."""
    return total([(at_once * row.count, row.price) for row in some_rows])


def quotas(job: Job, settings: Settings, at_once: int = 1) -> tuple[Quota, ...]:
    """Return the quotas that `at_once` parallel runs of a job need, starting with the GPU quotas.

    A SPOT or FLEX_START job uses the preemptible quota metrics. Source: Vertex AI, "Quotas and limits".
    """
    catalog, preemptible = settings.catalog, job.spec.scheduling.strategy in PREEMPTIBLE
    cards: Counter[tuple[str, str]] = Counter()  # (last word of the metric, noun that it counts) -> amount
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
    """Return the quotas that a job needs, excluding quotas whose metric is unknown.

    For a tuning job, return the quotas that all parallel trials need together.
    """
    search = trials(job)
    wanted = quotas(trial(job), settings, search.at_once if search else 1)
    return tuple(quota for quota in wanted if quota.metric)


def limits(wanted_quotas: Iterable[Quota], infos: Iterable[Resource], region: str) -> Iterator[tuple[Quota, int]]:
    """Yield each wanted quota that has a limit in the region, together with the limit.

    Source: Cloud Quotas API v1, quotaInfos.
    """
    wanted = {quota.metric: quota for quota in wanted_quotas}
    for info in infos if wanted else ():
        if quota := wanted.pop(info.get("metric", ""), None):
            entries = info.get("dimensionsInfos", ())
            values = [int(entry.get("details", {}).get("value", 0)) for entry in entries if region in _regions(entry)]
            yield from ((quota, value) for value in values[:1] if value >= 0)  # a negative value means no limit
        if not wanted:
            return


def _regions(entry: Resource) -> Sequence[str]:
    return (*entry.get("applicableLocations", ()), entry.get("dimensions", {}).get("region"))


def quota_command(settings: Settings) -> str:
    """Return the gcloud command that shows the project's quotas for training machines in each region."""
    which = f"--consumer=projects/{settings.project or 'PROJECT'} --filter='metric:custom_model_training'"
    return f"gcloud alpha services quota list --service=aiplatform.googleapis.com {which}"


def more_command(metric: str, settings: Settings, amount: int | str = "COUNT") -> str:
    """Return the gcloud command that requests a quota of `amount` for a metric in the region.

    The command also looks up the quota ID.
    """
    of = f"--service={metric.partition('/')[0]} --project={settings.project or 'PROJECT'}"
    id = f"$(gcloud beta quotas info list {of} --filter=metric={metric} --format='value(quotaId)')"
    wanted = f"--preferred-value={amount} --dimensions=region={settings.region or 'REGION'}"
    return f'gcloud beta quotas preferences create {of} --quota-id="{id}" {wanted}'


def role(pool: Pool) -> str:
    """Return the role of the pool's machines, such as `workers` or `reducers`."""
    return "reducers" if pool.reduces else ROLES[min(pool.index, len(ROLES) - 1)]


def _row(pool: Pool, catalog: Catalog) -> Row:
    kind = pool.machine_type, pool.accelerator, pool.accelerator_count
    machine = catalog.machine(pool.machine_type)
    speeds = catalog.network_gbps(*kind), machine.fabric_gbps if machine else None
    return Row(pool.index, role(pool), pool.replica_count, *kind, *speeds, catalog.price(*kind))

"""Quotas that a job needs, and their limits in a project. Source: Cloud Quotas API v1, quotaInfos."""

from collections.abc import Iterable, Iterator, Sequence

from vertex_launch.job_resource import Resource
from vertex_launch.plan import pools
from vertex_launch.plan.pools import Quota
from vertex_launch.settings import Settings
from vertex_launch.spec import Job, TuningJob, trial


def needed(job: Job | TuningJob, settings: Settings) -> tuple[Quota, ...]:
    """The quotas with a known name that a job uses up, or all trials that a search runs at once."""
    trials = pools.trials(job)
    wanted = pools.quotas(trial(job), settings, trials.at_once if trials else 1)
    return tuple(quota for quota in wanted if quota.metric)


def limits(wanted_quotas: Iterable[Quota], infos: Iterable[Resource], region: str) -> Iterator[tuple[Quota, int]]:
    """Yield each quota that has a limit in this region, with the limit, from the API's quotaInfos."""
    wanted = {quota.metric: quota for quota in wanted_quotas}
    for info in infos if wanted else ():
        if quota := wanted.pop(info.get("metric", ""), None):
            regional = [entry for entry in info.get("dimensionsInfos", ()) if region in _regions(entry)]
            values = [int(entry.get("details", {}).get("value", 0)) for entry in regional]
            yield from ((quota, value) for value in values[:1] if value >= 0)  # below 0: without a limit
        if not wanted:
            return


def _regions(entry: Resource) -> Sequence[str]:
    return (*entry.get("applicableLocations", ()), entry.get("dimensions", {}).get("region"))

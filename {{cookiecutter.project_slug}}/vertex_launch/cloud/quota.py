"""What a project may use of the quotas that a job needs. Source: Cloud Quotas API v1, quotaInfos."""

from collections.abc import Iterable, Iterator

from vertex_launch.cloud.service import Service
from vertex_launch.job_resource import Resource
from vertex_launch.plan.pools import Quota


def limits(needed: Iterable[Quota], service: Service) -> Iterator[tuple[Quota, int]]:
    """Each quota that has a limit in this region, and the limit.

    Raises:
        google.api_core.exceptions.Forbidden: you may not look at them, or the API is not switched on.
    """
    wanted = {quota.metric: quota for quota in needed if quota.metric}
    for info in service.quotas() if wanted else ():
        if quota := wanted.pop(info.get("metric", ""), None):
            values = [_value(one) for one in info.get("dimensionsInfos", ()) if _holds(one, service.region)]
            yield from ((quota, value) for value in values[:1] if value >= 0)  # below 0: without a limit
        if not wanted:
            return


def _holds(one: Resource, region: str) -> bool:
    return region in one.get("applicableLocations", ()) or one.get("dimensions", {}).get("region") == region


def _value(one: Resource) -> int:
    return int(one.get("details", {}).get("value", 0))

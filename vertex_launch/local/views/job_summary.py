"""Jobs as the web page shows them, and which of them the terminal follows."""

from collections.abc import Mapping, Sequence
from heapq import nlargest
from typing import Any

from vertex_launch.job_resource import (
    KINDS,
    Resource,
    backing,
    custom_jobs,
    fault,
    id_of,
    machines,
    same_result,
    state,
    trials,
)
from vertex_launch.local.api.store import Store
from vertex_launch.local.jobs.custom_jobs import Jobs


def everything(store: Store) -> list[Resource]:
    """Return the jobs of every kind."""
    return [resource for collection in KINDS for resource in store.all(collection)]


def newest(resources: Sequence[Resource], count: int) -> list[Resource]:
    """Return the `count` newest jobs, newest first."""
    return nlargest(count, resources, key=lambda resource: str(resource.get("createTime", "")))


def summaries(store: Store, jobs: Jobs, count: int) -> list[dict[str, Any]]:
    """Return the `count` newest jobs as the page reads them, then as many of those that a search or a pipeline made."""
    stored = everything(store)
    makers = {id_of(job): id_of(task["name"]) for task in stored for job in custom_jobs(task) if job != task["name"]}
    own = [job for job in stored if id_of(job["name"]) not in makers]
    made = [job for job in stored if id_of(job["name"]) in makers]
    return [_summary(one, jobs, makers, made) for one in (*newest(own, count), *newest(made, count))]


def _summary(resource: Resource, jobs: Jobs, makers: Mapping[str, str], made: Sequence[Resource]) -> dict[str, Any]:
    """A job for the page: "" or empty where the job lacks a field, and times as in the API."""
    _, project, _, location, collection, id = resource["name"].split("/")
    spec = resource.get("jobSpec") or resource.get("trialJobSpec") or {}
    return {
        "id": id,
        "collection": collection,
        "kind": KINDS[collection],
        "name": resource.get("displayName", ""),
        "project": project,
        "location": location,
        "state": state(resource),
        "created": resource.get("createTime", ""),
        "started": resource.get("startTime", ""),
        "ended": resource.get("endTime", ""),
        "error": fault(resource),
        "machines": [machines(pool) for pool in spec.get("workerPoolSpecs", ())],
        "replicas": jobs.statuses(resource["name"]),  # while it runs
        "trials": trials(resource, made),
        "metrics": [metric["metricId"] for metric in resource.get("studySpec", {}).get("metrics", ())],
        "same_result": same_result(resource),  # a sentence if all trials measured the same
        "trial_count": int(resource.get("maxTrialCount", 0)),  # the most that there will be
        "backing": id_of(backing(resource)),  # id of a pipeline's custom job
        "part_of": makers.get(id, ""),  # id of the tuning job or pipeline that made it
    }

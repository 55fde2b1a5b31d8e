"""Jobs as the web page shows them, and which of them the terminal follows."""

from collections.abc import Mapping, Sequence
from heapq import nlargest
from typing import Any

from vertex_launch.local.api.store import Resource, Store
from vertex_launch.local.jobs.custom_jobs import COLLECTION, Jobs

KINDS = {
    COLLECTION: "custom job",
    "hyperparameterTuningJobs": "tuning job",
    "trainingPipelines": "training pipeline",
}


def everything(store: Store) -> list[Resource]:
    """The jobs of every kind."""
    return [resource for collection in KINDS for resource in store.all(collection)]


def newest(found: Sequence[Resource], count: int) -> list[Resource]:
    """The `count` newest jobs, newest first."""
    return nlargest(count, found, key=lambda one: str(one.get("createTime", "")))


def summaries(store: Store, jobs: Jobs, count: int) -> list[dict[str, Any]]:
    """The `count` newest jobs as the page reads them."""
    found = everything(store)
    makers = {made: _id(maker["name"]) for maker in found for made in _made_by(maker)}
    return [_summary(resource, jobs, makers) for resource in newest(found, count)]


def _summary(resource: Resource, jobs: Jobs, makers: Mapping[str, str]) -> dict[str, Any]:
    """What a job lacks is "" or empty; times are as in the API."""
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
        "error": resource.get("error", {}).get("message", ""),
        "machines": [_machines(pool) for pool in spec.get("workerPoolSpecs", ())],
        "replicas": jobs.statuses(resource["name"]),  # while it runs
        "trials": trials(resource),
        "trial_count": int(resource.get("maxTrialCount", 0)),  # the most that there will be
        "backing": _backing(resource),  # id of a pipeline's custom job
        "part_of": makers.get(id, ""),  # id of the tuning job or pipeline that made it
    }


def state(resource: Resource) -> str:
    """RUNNING of JOB_STATE_RUNNING."""
    return str(resource.get("state", "")).partition("_STATE_")[2]


def _made_by(maker: Resource) -> list[str]:
    """The ids of the custom jobs that a tuning job or a pipeline has made; others have made "" alone."""
    return [_backing(maker), *(_id(trial.get("customJob", "")) for trial in maker.get("trials", ()))]


def _backing(pipeline: Resource) -> str:
    return _id((pipeline.get("trainingTaskMetadata") or {}).get("backingCustomJob", ""))


def _machines(pool: Mapping[str, Any]) -> str:
    """`3 x n1-standard-8 with 1 x NVIDIA_TESLA_T4`, "none" for an empty pool."""
    machine = pool.get("machineSpec", {})
    if not machine:
        return "none"
    text = f"{pool.get('replicaCount', 1)} x {machine.get('machineType', 'machine')}"
    count = machine.get("acceleratorCount", 0)
    return f"{text} with {count} x {machine.get('acceleratorType')}" if count else text


def trials(search: Resource) -> list[dict[str, Any]]:
    """The trials of a tuning job; other jobs have none."""
    measured = {trial["id"]: _metrics(trial) for trial in search.get("trials", ())}
    best = _best(measured, search.get("studySpec", {}).get("metrics", ()))
    return [
        {
            "id": trial["id"],
            "state": trial.get("state", ""),
            "parameters": {one["parameterId"]: one.get("value") for one in trial.get("parameters", ())},
            "metrics": measured[trial["id"]],  # of its final measurement
            "job": _id(trial.get("customJob", "")),
            "reason": trial.get("infeasibleReason", "").partition("\n")[0],  # the job shows the traceback
            "best": trial["id"] == best,  # of all ended trials, by the study's first metric
        }
        for trial in search.get("trials", ())
    ]


def _metrics(trial: Resource) -> dict[str, float]:
    found = trial.get("finalMeasurement", {}).get("metrics", ())
    return {one["metricId"]: one.get("value", 0.0) for one in found}


def _best(measured: Mapping[str, Mapping[str, float]], wanted: Sequence[Mapping[str, Any]]) -> str:
    """The id of the best trial, "" if no trial has ended."""
    if not wanted:
        return ""
    metric, sign = wanted[0].get("metricId", ""), -1 if wanted[0].get("goal") == "MINIMIZE" else 1
    ended = [id for id, metrics in measured.items() if metric in metrics]
    return max(ended, key=lambda id: sign * measured[id][metric], default="")


def _id(name: str) -> str:
    return name.rpartition("/")[2]

"""Summaries of jobs for people, on the web page and on the terminal."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from heapq import nlargest
from typing import Any

from vertex_launch.local.api.store import Resource, Store
from vertex_launch.local.jobs.custom_jobs import Jobs
from vertex_launch.local.running.replica_state import Status

KINDS = {
    "customJobs": "custom job",
    "hyperparameterTuningJobs": "tuning job",
    "trainingPipelines": "training pipeline",
}


@dataclass(frozen=True)
class Trial:
    """One trial of a tuning job."""

    id: str
    state: str
    parameters: Mapping[str, Any]  # by parameterId
    metrics: Mapping[str, float]  # of its final measurement, by metricId
    job: str  # the id of its custom job
    reason: str  # why it is infeasible, "" if it is not
    best: bool  # of all ended trials, by the study's first metric


@dataclass(frozen=True)
class JobSummary:
    """A custom job, tuning job or pipeline; what a job lacks is "" or an empty tuple."""

    id: str
    collection: str
    kind: str
    name: str  # its displayName
    project: str
    location: str
    state: str  # without the API's prefix: RUNNING
    created: str  # times are RFC 3339, as in the API
    started: str
    ended: str
    error: str
    machines: tuple[str, ...]  # one text a worker pool
    replicas: tuple[Status, ...]  # while it runs
    trials: tuple[Trial, ...]
    trial_count: int  # the most that there will be
    backing: str  # id of a pipeline's custom job
    part_of: str  # id of the tuning job or pipeline that made it


def summaries(store: Store, jobs: Jobs, count: int) -> list[JobSummary]:
    """The `count` newest jobs of every kind, newest first."""
    found = [(collection, resource) for collection in KINDS for resource in store.all(collection)]
    makers = dict(made for collection, resource in found for made in _made_by(collection, resource))
    newest = nlargest(count, found, key=lambda one: str(one[1].get("createTime", "")))
    return [_summary(collection, resource, jobs, makers) for collection, resource in newest]


def _summary(collection: str, resource: Resource, jobs: Jobs, makers: Mapping[str, str]) -> JobSummary:
    _, project, _, location, _, id = resource["name"].split("/")
    spec = resource.get("jobSpec") or resource.get("trialJobSpec") or {}
    return JobSummary(
        id=id,
        collection=collection,
        kind=KINDS[collection],
        name=resource.get("displayName", ""),
        project=project,
        location=location,
        state=resource.get("state", "").partition("_STATE_")[2],
        created=resource.get("createTime", ""),
        started=resource.get("startTime", ""),
        ended=resource.get("endTime", ""),
        error=resource.get("error", {}).get("message", ""),
        machines=tuple(_machines(pool) for pool in spec.get("workerPoolSpecs", ())),
        replicas=jobs.statuses(resource["name"]) if collection == "customJobs" else (),
        trials=_trials(resource),
        trial_count=int(resource.get("maxTrialCount", 0)),
        backing=_backing(resource),
        part_of=makers.get(id, ""),
    )


def _made_by(collection: str, resource: Resource) -> Iterator[tuple[str, str]]:
    """Pairs of ids: a custom job, and the tuning job or pipeline that made it."""
    maker = _id(resource["name"])
    yield from ((_id(trial["customJob"]), maker) for trial in resource.get("trials", ()) if "customJob" in trial)
    if collection == "trainingPipelines" and _backing(resource):
        yield _backing(resource), maker


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


def _trials(resource: Resource) -> tuple[Trial, ...]:
    measured = {trial["id"]: _metrics(trial) for trial in resource.get("trials", ())}
    best = _best(measured, resource.get("studySpec", {}).get("metrics", ()))
    return tuple(
        Trial(
            id=trial["id"],
            state=trial.get("state", ""),
            parameters={one["parameterId"]: one.get("value") for one in trial.get("parameters", ())},
            metrics=measured[trial["id"]],
            job=_id(trial.get("customJob", "")),
            reason=trial.get("infeasibleReason", "").partition("\n")[0],  # the job shows the traceback
            best=trial["id"] == best,
        )
        for trial in resource.get("trials", ())
    )


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

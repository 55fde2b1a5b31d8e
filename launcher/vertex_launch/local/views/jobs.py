"""Provides job data to the web page, and prints a line in the terminal whenever a job changes."""

import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from heapq import nlargest
from typing import Any

from rich.console import Console
from rich.text import Text

from vertex_launch.job import job_resource
from vertex_launch.job.job_resource import KINDS, Resource, backing, custom_jobs, fault, id_of, machines, state, style
from vertex_launch.local.api.store import Store
from vertex_launch.local.jobs.background import repeating
from vertex_launch.local.jobs.custom_jobs import Jobs
from vertex_launch.untrusted.printable import printable

POLL_SECONDS = 0.25
FOLLOWED = 1000  # how many of the newest jobs the terminal shows


def everything(store: Store) -> list[Resource]:
    return [resource for collection in KINDS for resource in store.all(collection)]


def newest(resources: Sequence[Resource], count: int) -> list[Resource]:
    """Return the `count` newest jobs, newest first."""
    return nlargest(count, resources, key=lambda resource: str(resource.get("createTime", "")))


def summaries(store: Store, jobs: Jobs, count: int) -> list[dict[str, Any]]:
    """Return the data of the newest jobs for the web page.

    The list contains at most `count` jobs created by users and at most `count` created by tuning jobs or pipelines.
    """
    stored = everything(store)
    makers = {id_of(job): id_of(task["name"]) for task in stored for job in custom_jobs(task) if job != task["name"]}
    own = [job for job in stored if id_of(job["name"]) not in makers]
    made = [job for job in stored if id_of(job["name"]) in makers]
    return [_summary(one, jobs, makers, made) for one in (*newest(own, count), *newest(made, count))]


def _summary(resource: Resource, jobs: Jobs, makers: Mapping[str, str], made: Sequence[Resource]) -> dict[str, Any]:
    """Return a job's data for the web page.

    Missing fields are "" or empty lists, and times are in the API's format.
    """
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
        "replicas": jobs.statuses(resource["name"]),  # only while the job runs
        "trials": job_resource.trials(resource, made),
        "metrics": [metric["metricId"] for metric in resource.get("studySpec", {}).get("metrics", ())],
        "same_result": job_resource.same_result(resource),  # a sentence if all trials have the same result
        "trial_count": int(resource.get("maxTrialCount", 0)),  # the maximum number of trials
        "backing": id_of(backing(resource)),  # the ID of a pipeline's custom job
        "part_of": makers.get(id, ""),  # the ID of the tuning job or pipeline that created this job
    }


def reports(store: Store, jobs: Jobs, console: Console) -> AbstractContextManager[None]:
    """Return a context manager whose thread prints each state change and each restart of a job."""
    states = {job["name"]: state(job) for job in newest(everything(store), FOLLOWED)}  # known states aren't printed

    def report() -> None:
        while jobs.events:
            console.print(event(*jobs.events.popleft()), soft_wrap=True)
        for job in reversed(newest(everything(store), FOLLOWED)):
            if states.get(job["name"]) != state(job):
                states[job["name"]] = state(job)
                console.print(change(job), soft_wrap=True)

    return repeating(report, POLL_SECONDS)


def change(job: Resource) -> Text:
    """Return a line about a job, such as `12:03:04 customJobs/17 digits FAILED: workerpool0-0 exited with code 1`."""
    message = fault(job).partition("\n")[0]
    *_, collection, id = job["name"].split("/")
    head = f"{time.strftime('%H:%M:%S')} {collection}/{id} {printable(job.get('displayName', ''))} "
    shown = (state(job), style(job))
    return Text.assemble(head, shown, f": {printable(message)}" if message else "")


def event(id: str, name: str, line: str) -> Text:
    """Return a line about an event, such as `12:03:04 customJobs/17 digits: workerpool1-0 is preempted`."""
    return Text(f"{time.strftime('%H:%M:%S')} customJobs/{id} {printable(name)}: {printable(line)}")

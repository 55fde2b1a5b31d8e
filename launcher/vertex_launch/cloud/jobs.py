"""Finds submitted jobs by name or ID, waits for their machines, and computes their cost."""

import contextlib
import heapq
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from pathlib import Path

from google.api_core.exceptions import FailedPrecondition, NotFound
from google.cloud.aiplatform_v1.types.custom_job import CustomJobSpec
from google.protobuf import json_format

from vertex_launch import program
from vertex_launch.cloud.logs import PASSING, pace_of
from vertex_launch.cloud.service import Service
from vertex_launch.errors import FaultError, nearest
from vertex_launch.facts.catalog import Catalog, Price
from vertex_launch.job.job_resource import ENDED, KINDS, Resource, custom_jobs, id_of, moment, run_spec, state
from vertex_launch.job.spec import Job
from vertex_launch.plan import pools
from vertex_launch.plan.formatting import clock
from vertex_launch.untrusted.printable import printable

PREFIXES = {"trainingPipelines": "PIPELINE_STATE_"}  # state prefixes; the default is JOB_STATE_
NEVER = "trainingPipelines", "EXPIRED"  # a state that training pipelines don't have
NEAR = 100  # number of newest jobs to search for a name, or for the creators of the newest custom jobs
MAKERS = tuple(kind for kind in KINDS if kind != "customJobs")  # their custom jobs aren't listed separately
UNFINISHED = ("QUEUED", "PENDING", "RUNNING", "CANCELLING")
NAME = re.compile(rf"projects/[^/]+/locations/(?P<region>[^/]+)/({'|'.join(KINDS)})/[0-9]+")
BRIEF = re.compile(rf"({'|'.join(KINDS)})/[0-9]+")
JOB_FILES = (".json", ".yaml", ".yml")
WAITING = ("", "QUEUED", "PENDING")
CANCEL_SECONDS = 600.0  # time within which a canceled job must end
# The google.rpc.Code of a job if no machines are available, or if a quota is exhausted.
NO_MACHINES = (8, 14)  # RESOURCE_EXHAUSTED, UNAVAILABLE


@dataclass(frozen=True)
class Cost:
    """A job's cost, computed from list prices and the run time of its machines."""

    usd: float
    hours: float  # total of all its runs; each trial of a tuning job is a run
    per_hour: Price  # of one run
    rows: tuple[pools.Row, ...]  # its machines


def newest(service: Service, most: int, wanted: str = "") -> list[Resource]:
    """Return the newest jobs, excluding jobs that a tuning job or a pipeline created.

    If `wanted` isn't empty, return only jobs in this state.
    """
    makers = [job for kind in MAKERS for job in service.list(kind, most=max(most, NEAR))]
    states = (wanted,) if wanted else ()
    shown = [job for kind in MAKERS for job in _in(service, kind, states, most)] if wanted else makers
    customs = _in(service, "customJobs", states, sys.maxsize)
    merged = heapq.merge(sorted(shown, key=_created, reverse=True), customs, key=_created, reverse=True)
    return [*islice(_without_made(merged, [*makers, *shown]), most)]


def unfinished(service: Service) -> list[Resource]:
    """Return all jobs that haven't ended, excluding jobs that a tuning job or a pipeline created."""
    makers = [job for kind in MAKERS for job in _in(service, kind, UNFINISHED, sys.maxsize)]
    return [*_without_made(_in(service, "customJobs", UNFINISHED, sys.maxsize), makers), *makers]


def find(service: Service, word: str | None = None) -> Resource:
    """Return the newest job that `word` selects. If `word` is None, return the newest of all jobs.

    Raises FaultError if no job matches.
    """
    if word is None:
        if jobs := newest(service, 1):
            return jobs[0]
        raise FaultError(f"{service.place}: there is no job yet; submit one with: {program.NAME} submit JOB.yaml")
    return _meant(service, word)[0]


def running(service: Service, word: str) -> Resource:
    """Return the job that `word` selects. If several jobs match, prefer a running job.

    Raises FaultError if several of the matching jobs are running.
    """
    jobs = _meant(service, word)
    alive = [job for job in jobs if state(job) not in ENDED]
    if len(alive) > 1:
        choices = ", ".join(f"{id_of(job['name'])} from {clock(moment(job, 'createTime'))}" for job in alive)
        raise FaultError(f"{len(alive)} jobs with the name {printable(word)} are running; specify a job ID: {choices}")
    return (alive or jobs)[0]


def _meant(service: Service, word: str) -> list[Resource]:
    """Return the jobs that `word` selects, newest first. Several jobs can have the same display name."""
    names = _resource_names(service, word)
    for name in names:
        with contextlib.suppress(NotFound):
            return [service.get(name)]
    if names:
        raise FaultError(f"{service.place}: the job {word} doesn't exist; to list the jobs, run: {program.NAME} jobs")
    recent = newest(service, NEAR)
    name = Path(word).stem if word.endswith(JOB_FILES) else word
    if named := [job for job in recent if job.get("displayName") == name]:
        return named
    meant = nearest(word, [str(job.get("displayName")) for job in recent])
    guess = f"did you mean {printable(meant)}? " if meant else ""
    fault = f'none of the newest {NEAR} jobs is named "{printable(word)}"'
    raise FaultError(f"{service.place}: {fault}; {guess}to list the jobs, run: {program.NAME} jobs")


def _resource_names(service: Service, word: str) -> list[str]:
    """Return the resource names that `word` can refer to.

    The resource names that Google returns contain the project number instead of the project ID.
    """
    if word.isdecimal():
        return [f"{service.settings.parent}/{kind}/{word}" for kind in KINDS]
    if BRIEF.fullmatch(word):
        return [f"{service.settings.parent}/{word}"]
    if "/locations/" not in word:
        return []
    match = NAME.fullmatch(word)
    if match is None:
        cure = f"use, for example, {service.settings.parent}/customJobs/17"
        raise FaultError(f"{printable(word)} isn't a valid job name; {cure}")
    region, job_region = service.settings.region, match["region"]
    if job_region != region:
        raise FaultError(f"{word}: the job is in {job_region}, not in {region}; add --region {job_region}")
    return [word]


def found_no_machines(job: Resource) -> bool:
    """Return whether a job is still waiting for machines or ended because none were available."""
    waits = state(job) in (*WAITING, "EXPIRED")
    return waits or ("startTime" not in job and job.get("error", {}).get("code") in NO_MACHINES)


def withdraw(service: Service, name: str) -> Resource:
    """Cancel a job, wait until it has ended, and return it.

    Raises FaultError if the job doesn't end in time. After this error, don't submit another job, because both jobs
    might run at the same time.
    """
    with contextlib.suppress(FailedPrecondition):  # the job has just ended by itself
        service.cancel(name)
    job = wait(service, name, lambda job: state(job) in ENDED, CANCEL_SECONDS)
    if state(job) not in ENDED:
        fault = f"the job was asked to stop, but after {CANCEL_SECONDS:g} s, its state is {state(job) or 'unknown'}"
        raise FaultError(f"{name}: {fault}. The job wasn't submitted again, because the first job might exist")
    return job


def wait(service: Service, name: str, until: Callable[[Resource], bool], seconds: float) -> Resource:
    """Poll a job until `until` returns true or the timeout expires, and return the job. Ignore temporary errors."""
    job: Resource
    deadline, job = time.monotonic() + seconds, {"name": name}
    pause = pace_of(service).between
    while True:
        with contextlib.suppress(*PASSING):
            job = service.get(name)
        if until(job) or time.monotonic() >= deadline:
            return job
        time.sleep(min(pause, max(deadline - time.monotonic(), 0)))


def _created(job: Resource) -> str:
    return str(job.get("createTime"))


def _without_made(jobs: Iterable[Resource], makers: Iterable[Resource]) -> Iterator[Resource]:
    made = {id_of(run) for job in makers for run in custom_jobs(job)}
    return (job for job in jobs if id_of(job["name"]) not in made)


def cost(job: Resource, catalog: Catalog, now: datetime) -> Cost | None:
    """Return a job's cost so far. If the price of any of its machines is unknown, return None."""
    spec = CustomJobSpec()
    with contextlib.suppress(json_format.ParseError):  # a pipeline's inputs may not be a CustomJobSpec
        # A field that is newer than this package doesn't affect the cost.
        json_format.ParseDict(dict(run_spec(job)), CustomJobSpec.pb(spec), ignore_unknown_fields=True)
    rows, until = pools.rows(Job("", "", spec), catalog), moment(job, "endTime") or now
    price = pools.price(rows)
    hours = sum(ran(run, until) for run in (job["trials"] if job.get("trials") else [job])) / 3600
    return Cost(hours * price.usd, hours, price, rows) if price else None


def waited(job: Resource, now: datetime) -> float:
    """Return the time in seconds that a job has waited for machines since its creation."""
    until = moment(job, "startTime") or moment(job, "endTime") or now
    return max(0.0, (until - (moment(job, "createTime") or now)).total_seconds())


def ran(run: Resource, now: datetime) -> float:
    """Return the run time of a job or a trial so far, in seconds. If the machines haven't started, return 0."""
    started, until = moment(run, "startTime"), moment(run, "endTime") or now
    # This machine's clock may be behind the service's.
    return max(0.0, (until - started).total_seconds()) if started else 0.0


def _in(service: Service, collection: str, states: Sequence[str], most: int) -> Iterator[Resource]:
    if (collection, *states) == NEVER:
        return iter(())
    prefix = PREFIXES.get(collection, "JOB_STATE_")
    return service.list(collection, " OR ".join(f'state="{prefix}{name}"' for name in states), most)

"""Jobs that were sent: which one is meant, whether it finds machines, and what it has cost."""

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

PREFIXES = {"trainingPipelines": "PIPELINE_STATE_"}  # prefixes of states; the default is JOB_STATE_
NEVER = "trainingPipelines", "EXPIRED"  # a state that training pipelines do not have
NEAR = 100  # newest jobs among which a name may have been meant, or which may have made the newest custom jobs
MAKERS = tuple(kind for kind in KINDS if kind != "customJobs")  # their custom jobs are no jobs of their own
UNFINISHED = ("QUEUED", "PENDING", "RUNNING", "CANCELLING")
NAME = re.compile(rf"projects/[^/]+/locations/(?P<region>[^/]+)/({'|'.join(KINDS)})/[0-9]+")
BRIEF = re.compile(rf"({'|'.join(KINDS)})/[0-9]+")
JOB_FILES = (".json", ".yaml", ".yml")
WAITING = ("", "QUEUED", "PENDING")
CANCEL_SECONDS = 600.0  # until a job that is cancelled must have ended
# google.rpc.Code of a job for which there are no machines, or of a quota that is used up.
NO_MACHINES = (8, 14)  # RESOURCE_EXHAUSTED, UNAVAILABLE


@dataclass(frozen=True)
class Cost:
    """Cost of a job, by list prices and the time since its machines started."""

    usd: float
    hours: float  # of all its runs together; a search has one for each trial
    per_hour: Price  # of one run
    rows: tuple[pools.Row, ...]  # its machines


def newest(service: Service, most: int, wanted: str = "") -> list[Resource]:
    """Return the newest jobs of every kind in a state, "" for any, without those that a search or a pipeline made."""
    makers = [job for kind in MAKERS for job in service.list(kind, most=max(most, NEAR))]
    states = (wanted,) if wanted else ()
    shown = [job for kind in MAKERS for job in _in(service, kind, states, most)] if wanted else makers
    customs = _in(service, "customJobs", states, sys.maxsize)
    merged = heapq.merge(sorted(shown, key=_created, reverse=True), customs, key=_created, reverse=True)
    return [*islice(_without_made(merged, [*makers, *shown]), most)]


def unfinished(service: Service) -> list[Resource]:
    """Return all jobs that have not ended, without those that a search or a pipeline made."""
    makers = [job for kind in MAKERS for job in _in(service, kind, UNFINISHED, sys.maxsize)]
    return [*_without_made(_in(service, "customJobs", UNFINISHED, sys.maxsize), makers), *makers]


def find(service: Service, word: str | None = None) -> Resource:
    """Return the job of a number or resource name, the newest of a name or job file, or of all; raises FaultError."""
    if word is None:
        if jobs := newest(service, 1):
            return jobs[0]
        raise FaultError(f"{service.place}: there is no job yet; send one with: {program.NAME} submit JOB.yaml")
    return _meant(service, word)[0]


def running(service: Service, word: str) -> Resource:
    """Return the job that a person names, the one that runs of several; raises FaultError where several run."""
    jobs = _meant(service, word)
    alive = [job for job in jobs if state(job) not in ENDED]
    if len(alive) > 1:
        choices = ", ".join(f"{id_of(job['name'])} of {clock(moment(job, 'createTime'))}" for job in alive)
        raise FaultError(f"{len(alive)} jobs of the name {printable(word)} run; name one by its number: {choices}")
    return (alive or jobs)[0]


def _meant(service: Service, word: str) -> list[Resource]:
    """Return the jobs that a word means, newest first: one by its number or resource name, several by their name."""
    names = _resource_names(service, word)
    for name in names:
        with contextlib.suppress(NotFound):
            return [service.get(name)]
    if names:
        raise FaultError(f"{service.place}: there is no job {word}; those that are there: {program.NAME} jobs")
    recent = newest(service, NEAR)
    name = Path(word).stem if word.endswith(JOB_FILES) else word
    if named := [job for job in recent if job.get("displayName") == name]:
        return named
    meant = nearest(word, [str(job.get("displayName")) for job in recent])
    guess = f"did you mean {printable(meant)}? " if meant else ""
    fault = f'is no job "{printable(word)}" among the newest {NEAR}'
    raise FaultError(f"{service.place}: there {fault}; {guess}those that are there: {program.NAME} jobs")


def _resource_names(service: Service, word: str) -> list[str]:
    """Return the resource names that a word may stand for; Google writes the project's number in place of its ID."""
    if word.isdecimal():
        return [f"{service.settings.parent}/{kind}/{word}" for kind in KINDS]
    if BRIEF.fullmatch(word):
        return [f"{service.settings.parent}/{word}"]
    if "/locations/" not in word:
        return []
    match = NAME.fullmatch(word)
    if match is None:
        cure = f"write such as {service.settings.parent}/customJobs/17"
        raise FaultError(f"{printable(word)}: is no name of a job; {cure}")
    region, job_region = service.settings.region, match["region"]
    if job_region != region:
        raise FaultError(f"{word}: is in {job_region}, not in {region}; add --region {job_region}")
    return [word]


def found_no_machines(job: Resource) -> bool:
    """Whether a job waits still, or has ended because there were no machines for it."""
    waits = state(job) in (*WAITING, "EXPIRED")
    return waits or ("startTime" not in job and job.get("error", {}).get("code") in NO_MACHINES)


def withdraw(service: Service, name: str) -> Resource:
    """Cancel a job, and return it when it has ended.

    Raises FaultError for one that does not end: another one in its place would run beside it.
    """
    with contextlib.suppress(FailedPrecondition):  # it has just ended by itself
        service.cancel(name)
    job = wait(service, name, lambda job: state(job) in ENDED, CANCEL_SECONDS)
    if state(job) not in ENDED:
        fault = f"was cancelled and is {state(job) or 'silent'} after {CANCEL_SECONDS:g} s"
        raise FaultError(f"{name}: {fault}; no other job was sent, as both might run")
    return job


def wait(service: Service, name: str, until: Callable[[Resource], bool], seconds: float) -> Resource:
    """Look at a job until it is as wanted or the time is over; a service that does not answer is asked again."""
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
    """Cost of a job until now; None if the price of a machine of it is not known."""
    spec = CustomJobSpec()
    with contextlib.suppress(json_format.ParseError):  # a pipeline may have inputs that are no CustomJobSpec's
        # A field that is newer than this package costs nothing.
        json_format.ParseDict(dict(run_spec(job)), CustomJobSpec.pb(spec), ignore_unknown_fields=True)
    rows, until = pools.rows(Job("", "", spec), catalog), moment(job, "endTime") or now
    price = pools.price(rows)
    hours = sum(ran(run, until) for run in (job["trials"] if job.get("trials") else [job])) / 3600
    return Cost(hours * price.usd, hours, price, rows) if price else None


def waited(job: Resource, now: datetime) -> float:
    """Seconds from its creation until its machines started, or until now."""
    until = moment(job, "startTime") or moment(job, "endTime") or now
    return max(0.0, (until - (moment(job, "createTime") or now)).total_seconds())


def ran(run: Resource, now: datetime) -> float:
    """Seconds since the machines of a job or a trial started, until its end or now; 0 if they have not."""
    started, until = moment(run, "startTime"), moment(run, "endTime") or now
    # This machine's clock may be behind the service's.
    return max(0.0, (until - started).total_seconds()) if started else 0.0


def _in(service: Service, collection: str, states: Sequence[str], most: int) -> Iterator[Resource]:
    if (collection, *states) == NEVER:
        return iter(())
    prefix = PREFIXES.get(collection, "JOB_STATE_")
    return service.list(collection, " OR ".join(f'state="{prefix}{name}"' for name in states), most)

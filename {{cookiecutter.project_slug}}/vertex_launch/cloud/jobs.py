"""Jobs that were sent: which one is meant, and what it has cost."""

import contextlib
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from google.api_core.exceptions import NotFound
from google.cloud.aiplatform_v1.types.custom_job import CustomJobSpec
from google.protobuf import json_format  # type: ignore[import-untyped, unused-ignore]

from vertex_launch import program
from vertex_launch.catalog import Catalog, Price
from vertex_launch.cloud.service import Service
from vertex_launch.errors import FaultError, nearest
from vertex_launch.job_resource import KINDS, Resource, moment, run_spec
from vertex_launch.plan import pools
from vertex_launch.spec import Job, Request

PREFIXES = {"trainingPipelines": "PIPELINE_STATE_"}  # of states; those of all others begin with JOB_STATE_
NEAR = 100  # newest jobs among which a name may have been meant
JOB_FILES = (".json", ".yaml", ".yml")


class NoJobError(FaultError):
    """There is no such job."""


@dataclass(frozen=True)
class Cost:
    """What a job has cost, by list prices and the time since its machines started."""

    usd: float
    hours: float  # of all its runs together; a search has one for each trial
    per_hour: Price  # of one run
    rows: tuple[pools.Row, ...]  # its machines


def newest(service: Service, most: int, wanted: str = "") -> list[Resource]:
    """The newest jobs of every kind, in a state such as RUNNING if one is wanted."""
    found = [
        job
        for collection in KINDS
        for job in service.list(collection, _in_state(collection, wanted) if wanted else "", most)
    ]
    return sorted(found, key=lambda job: str(job.get("createTime")), reverse=True)[:most]


def find(service: Service, word: str = "") -> Resource:
    """The job that a person names.

    Args:
        word: its number, its resource name, its display name or a job file, which mean the newest one of that name;
            "" means the newest of all.

    Raises:
        NoJobError: there is none.
    """
    if word.startswith("projects/"):
        return service.get(word)
    if word.isdecimal():
        return _numbered(service, word)
    recent = newest(service, NEAR)
    name = Path(word).stem if word.endswith(JOB_FILES) else word
    if found := next((job for job in recent if name in ("", job.get("displayName"))), None):
        return found
    names = [str(job.get("displayName")) for job in recent]
    guess = f"did you mean {meant}? " if (meant := nearest(name, names)) else ""
    there = f'is no job "{name}" among the newest {NEAR}' if name else "is no job yet"
    raise NoJobError(f"{service.parent}: there {there}; {guess}those that are there: {program.NAME} jobs")


def cost(job: Resource, catalog: Catalog, now: datetime) -> Cost | None:
    """What a job has cost until now; None if the price of a machine of it is not known."""
    spec = CustomJobSpec()
    with contextlib.suppress(json_format.ParseError):  # of a pipeline that is not a custom job's
        # A field that is newer than this package costs nothing.
        json_format.ParseDict(dict(run_spec(job)), CustomJobSpec.pb(spec), ignore_unknown_fields=True)
    rows = pools.rows(Job(Request(""), "", spec), catalog)
    price = pools.price(rows)
    hours = sum(_hours(run, now) for run in (job["trials"] if job.get("trials") else [job]))
    return Cost(hours * price.usd, hours, price, rows) if price else None


def waited(job: Resource, now: datetime) -> float:
    """Seconds from its creation until its machines started, or until now."""
    created = moment(job, "createTime") or now
    return ((moment(job, "startTime") or moment(job, "endTime") or now) - created).total_seconds()


def ran(job: Resource, now: datetime) -> float:
    """Seconds since its machines started, or until it ended; 0 if they have not."""
    return 3600 * _hours(job, now)


def _hours(run: Resource, now: datetime) -> float:
    """Of a job or a trial, since its machines started."""
    started = moment(run, "startTime")
    return ((moment(run, "endTime") or now) - started).total_seconds() / 3600 if started else 0.0


def _numbered(service: Service, id: str) -> Resource:
    for collection in KINDS:
        with contextlib.suppress(NotFound):
            return service.get(f"{service.parent}/{collection}/{id}")
    raise NoJobError(f"{service.parent}: there is no job {id}; those that are there: {program.NAME} jobs")


def _in_state(collection: str, wanted: str) -> str:
    return f'state="{PREFIXES.get(collection, "JOB_STATE_")}{wanted}"'

"""Follow a job to its end: what it does and what its replicas print, as it happens."""

import time
from collections.abc import Iterator
from dataclasses import dataclass

from google.api_core.exceptions import ServerError, TooManyRequests

from vertex_launch.cloud.logs import Line, Log
from vertex_launch.cloud.refusals import said_by
from vertex_launch.cloud.service import NoAnswerError, Service
from vertex_launch.job_resource import ENDED, Resource, custom_jobs, state

PASSING = (NoAnswerError, ServerError, TooManyRequests)  # a later request may not meet them
LONGEST_PAUSE = 60.0
TRIES = 6  # to read the log of a job that has ended, or to read a log once


@dataclass(frozen=True)
class Pace:
    """Seconds between requests, and how often an ended job's log is read."""

    between: float
    settles: int  # looks at the log of an ended job that bring nothing, before it counts as whole


GOOGLES, LOCAL = Pace(5.0, 3), Pace(0.5, 1)  # a line may take seconds to arrive in Cloud Logging


@dataclass(frozen=True)
class Changed:
    """The job is in another state than before, or has another trial."""

    job: Resource


@dataclass(frozen=True)
class Lost:
    """No answer, or one that is no help; it is asked again and again, and `said` is why."""

    said: str


@dataclass(frozen=True)
class Back:
    """The service answers again."""


Event = Changed | Line | Lost | Back


def follow(service: Service, name: str, log: Log, pace: Pace | None = None) -> Iterator[Event]:
    """Yield what happens to the job of this name until it has ended and its log is whole.

    A service that is gone for a while does not end this, however long that takes, unless the job has ended.
    Raises GoogleAPICallError where the job may no longer be seen, GoogleAuthError where the login is no longer good.
    """
    pace = pace or pace_of(service)
    known, runs, quiet, failed = "", list[str](), 0, 0
    while quiet < pace.settles and not (known in ENDED and failed >= TRIES):
        read = log.count
        try:
            job = service.get(name)
            if (state(job), custom_jobs(job)) != (known, runs):
                known, runs = state(job), custom_jobs(job)
                yield Changed(job)
            yield from log.new(job)
        except PASSING as error:
            if not failed:
                yield Lost(said_by(error))
            failed += 1
        else:
            if failed:
                yield Back()
            failed, quiet = 0, 0 if log.count > read or known not in ENDED else quiet + 1
        if quiet < pace.settles:
            time.sleep(min(pace.between * 2 ** min(failed, 10), LONGEST_PAUSE))


def once(service: Service, job: Resource, log: Log) -> Iterator[Line | Lost]:
    """Yield what is in the log of a job now; goes on where an answer did not come, a few times."""
    for tried in range(1, TRIES + 1):
        try:
            yield from log.new(job)
            return
        except PASSING as error:
            if tried == TRIES:
                raise
            if tried == 1:
                yield Lost(said_by(error))
        time.sleep(min(pace_of(service).between * 2**tried, LONGEST_PAUSE))


def pace_of(service: Service) -> Pace:
    return LOCAL if service.endpoint else GOOGLES

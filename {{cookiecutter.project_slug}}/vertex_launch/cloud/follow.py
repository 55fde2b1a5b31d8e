"""Follow a job to its end: what it does and what its replicas print, as it happens."""

import time
from collections.abc import Generator, Iterator
from dataclasses import dataclass

from google.api_core.exceptions import GoogleAPICallError, ServerError, TooManyRequests
from google.auth.exceptions import TransportError

from vertex_launch.cloud.logs import Line, Log
from vertex_launch.cloud.refusals import said_by
from vertex_launch.cloud.service import Service
from vertex_launch.job_resource import ENDED, Resource, state

PASSING = (ServerError, TooManyRequests, TransportError, OSError)  # what a later request may not meet
LONGEST_PAUSE = 60.0


@dataclass(frozen=True)
class Pace:
    """How often the service is asked, in seconds."""

    between: float
    settles: int  # looks at the log of an ended job that bring nothing, before it counts as whole


# Cloud Logging answers 60 times a minute, and a line may take seconds to arrive. Source: its "Quotas and limits", 2026.
GOOGLES, LOCAL = Pace(5.0, 3), Pace(0.5, 1)


@dataclass(frozen=True)
class Changed:
    """The job is in another state than before."""

    job: Resource


@dataclass(frozen=True)
class Lost:
    """No answer, or one that is no help; it is asked again and again, and `said` is why."""

    said: str


@dataclass(frozen=True)
class Back:
    """It answers again."""


Event = Changed | Line | Lost | Back


def follow(service: Service, name: str, log: Log, pace: Pace | None = None) -> Iterator[Event]:
    """What happens to the job of this name until it has ended and its log is whole; the last event is its end.

    A service that is gone for a while does not end this, however long that takes.

    Raises:
        google.api_core.exceptions.GoogleAPICallError: the job is gone, or may no longer be seen.
        google.auth.exceptions.GoogleAuthError: the login is no longer good.
    """
    pace = pace or (LOCAL if service.endpoint else GOOGLES)
    known, quiet, pause = "", 0, pace.between
    while True:
        try:
            job = service.get(name)
            if state(job) not in (known, *ENDED):
                known = state(job)
                yield Changed(job)
            printed = yield from _counted(log.new(job))
        except PASSING as error:
            if pause == pace.between:
                yield Lost(said_by(error) if isinstance(error, GoogleAPICallError) else "there was no answer")
            pause = min(2 * pause, LONGEST_PAUSE)
        else:
            if pause > pace.between:
                yield Back()
            pause, quiet = pace.between, 0 if printed or state(job) not in ENDED else quiet + 1
            if quiet == pace.settles:
                yield Changed(job)
                return
        time.sleep(pause)


def _counted(lines: Iterator[Line]) -> Generator[Line, None, int]:
    """Yields the lines, and returns how many there were."""
    count = 0
    for count, line in enumerate(lines, 1):  # noqa: B007
        yield line
    return count

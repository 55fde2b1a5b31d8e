"""Reads the log lines of a job's replicas from Cloud Logging, and follows a job until it ends."""

import json
import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Any

from google.api_core.exceptions import ServerError, TooManyRequests

from vertex_launch.cloud.refusals import message_of
from vertex_launch.cloud.service import NoAnswerError, Service
from vertex_launch.job.job_resource import ENDED, TRIAL_LABEL, Resource, custom_jobs, fault, id_of, moment, state
from vertex_launch.untrusted.printable import plain, printable

PRUNED = 10_000  # number of lines after which the IDs of old lines are forgotten
MOST_JOBS = 200  # newest custom jobs of a tuning job; a filter has at most 20,000 characters
ERRORS = 200  # error lines to search for the cause of a failure
CAUSE_LINES = 20  # number of lines to show if there is no traceback
MOST_NAMED = 20  # maximum number of replicas to read from the service's message
TRACEBACK = "Traceback (most recent call last):"
REPLICA = re.compile(r"workerpool\d+-\d+")
PASSING = (NoAnswerError, ServerError, TooManyRequests)  # temporary errors
LONGEST_PAUSE = 60.0
TRIES = 6  # attempts to read the log of an ended job, or to read a log once


@dataclass(frozen=True)
class Line:
    """A log line: one line of text or one JSON object that a replica printed."""

    id: str
    time: datetime
    job: str  # the number of its custom job; in a tuning job with parallel trials, of the tuning job
    trial: str  # of a tuning job; "" if the line doesn't specify one
    replica: str  # such as workerpool0-0
    severity: str
    text: str  # without control characters
    fields: Mapping[str, Any]  # of the JSON object; empty for a plain text line

    def __str__(self) -> str:
        return f"[{self.replica}] {self.text}"


class Log:
    """The log of a job or of one of its replicas, starting at a given time or at the job's creation.

    The log includes lines that arrive late.

    Args:
        part: the text that every line must contain. The search ignores case.
    """

    def __init__(self, service: Service, since: datetime | None = None, replica: str = "", part: str = "") -> None:
        self._service, self._since, self._replica = service, since, replica
        self._part = [json.dumps(part)] * bool(part)
        self._seen: dict[str, datetime] = {}
        self.count = 0  # lines that were read

    def new(self, job: Resource) -> Iterator[Line]:
        """Yield the unread log lines in chronological order.

        If an earlier call was interrupted, continue after the last line that it yielded.
        """
        since = self._since or moment(job, "createTime")  # without a time, Cloud Logging searches weeks of logs
        wanted = _filter(job, [self._replica] if self._replica else [], since, *self._part)
        try:
            for line in map(_line, self._service.log_entries(wanted, "timestamp asc")):
                if line.id not in self._seen:
                    self._seen[line.id] = line.time
                    self.count += 1
                    yield line
                    if self.count % PRUNED == 0:
                        self._forget(since)
        finally:
            self._forget(since)

    def _forget(self, since: datetime | None) -> None:
        """Set the next request's start time to shortly before the newest line, and discard the IDs of older lines.

        The time ranges of the requests overlap, because lines from other machines might arrive late.
        """
        if self._seen:
            newest = min(max(self._seen.values()), datetime.now(UTC))  # a replica may write any timestamp
            begin = newest - pace_of(self._service).late
            self._since = max(since, begin) if since else begin
            self._seen = {id: time for id, time in self._seen.items() if time >= self._since}


def cause(service: Service, job: Resource) -> Sequence[Line]:
    """Return the traceback or the last error lines of the replica that failed first.

    If the log doesn't contain errors, return an empty sequence.
    """
    named = [*dict.fromkeys(REPLICA.findall(fault(job)))][:MOST_NAMED]
    wanted = _filter(job, named, moment(job, "createTime"), "severity>=ERROR")
    errors = [*map(_line, islice(service.log_entries(wanted, "timestamp desc"), ERRORS))][::-1]
    failed = [line.replica for line in errors if TRACEBACK in line.text] or [line.replica for line in errors]
    last = [line for line in errors if line.replica == failed[0]]
    begins = [index for index, line in enumerate(last) if TRACEBACK in line.text]
    return last[begins[-1] :] if begins else last[-CAUSE_LINES:]


def _filter(job: Resource, replicas: Sequence[str], since: datetime | None, *more: str) -> str:
    """Return the Cloud Logging filter for the log lines of a job, in the form that gcloud uses."""
    ids = dict.fromkeys((id_of(job["name"]), *map(id_of, custom_jobs(job)[-MOST_JOBS:])))
    terms = ['resource.type="ml_job"', _one_of("job_id", ids)]
    terms += [_one_of("task_name", replicas)] * bool(replicas)
    terms += [f'timestamp>="{since.isoformat()}"'] if since else []
    return " AND ".join((*terms, *more))


def _one_of(label: str, values: Iterable[str]) -> str:
    return f"({' OR '.join(f'resource.labels.{label}={json.dumps(value)}' for value in values)})"


def _line(entry: Resource) -> Line:
    fields, labels = entry.get("jsonPayload") or {}, entry.get("resource", {}).get("labels", {})
    message = fields.get("message", entry.get("textPayload"))
    text = message if isinstance(message, str) else json.dumps(fields)
    return Line(
        id=str(entry.get("insertId")),
        time=datetime.fromisoformat(entry["timestamp"]),
        job=str(labels.get("job_id", "")),
        trial=str((entry.get("labels") or {}).get(TRIAL_LABEL, "")),
        replica=printable(str(labels.get("task_name") or "job")),
        severity=str(entry.get("severity", "DEFAULT")),
        text="\n".join(map(printable, plain(text).rstrip().splitlines())),
        fields=fields,
    )


@dataclass(frozen=True)
class Pace:
    """The interval between requests to a service, and the number of times to read the log of an ended job."""

    between: float  # seconds
    settles: int  # reads of an ended job's log without new lines, after which the log counts as complete
    late: timedelta = timedelta(seconds=30)  # maximum delay of a line; Cloud Logging doesn't keep the order of lines


# A line may take seconds to reach Cloud Logging. In the local Vertex, an entry may wait in the sending client.
GOOGLES, LOCAL = Pace(5.0, 3), Pace(0.5, 1, timedelta(seconds=5))


@dataclass(frozen=True)
class Changed:
    """An event that reports a new state or a new trial of the job."""

    job: Resource


@dataclass(frozen=True)
class Lost:
    """An event that reports a missing or unusable response from the service. `follow` repeats the request."""

    reason: str


class Back:
    """An event that reports that the service responds again."""


Event = Changed | Line | Lost | Back


def follow(service: Service, name: str, log: Log, pace: Pace | None = None) -> Iterator[Event]:
    """Yield the events of a job until the job has ended and its log is complete.

    If the service doesn't respond while the job runs, retry indefinitely.
    Raises GoogleAPICallError if the job can no longer be read, and GoogleAuthError if the credentials have expired.
    """
    pace = pace or pace_of(service)
    last_state, runs, quiet, failed = "", list[str](), 0, 0
    while quiet < pace.settles and not (last_state in ENDED and failed >= TRIES):
        read = log.count
        try:
            job = service.get(name)
            if (state(job), custom_jobs(job)) != (last_state, runs):
                last_state, runs = state(job), custom_jobs(job)
                yield Changed(job)
            yield from log.new(job)
        except PASSING as error:
            if not failed:
                yield Lost(message_of(error))
            failed += 1
        else:
            if failed:
                yield Back()
            failed, quiet = 0, 0 if log.count > read or last_state not in ENDED else quiet + 1
        if quiet < pace.settles:
            time.sleep(min(pace.between * 2 ** min(failed, 10), LONGEST_PAUSE))


def once(service: Service, job: Resource, log: Log) -> Iterator[Line | Lost]:
    """Yield all current log lines of a job. If the service doesn't respond, retry a few times."""
    for tried in range(1, TRIES + 1):
        try:
            yield from log.new(job)
            return
        except PASSING as error:
            if tried == TRIES:
                raise
            if tried == 1:
                yield Lost(message_of(error))
        time.sleep(min(pace_of(service).between * 2**tried, LONGEST_PAUSE))


def pace_of(service: Service) -> Pace:
    return LOCAL if service.endpoint else GOOGLES

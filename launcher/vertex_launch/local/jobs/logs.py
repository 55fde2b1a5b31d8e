"""Serves replica logs in Cloud Logging format. Each request reads only one page of a log."""

import base64
import contextlib
import heapq
import json
import secrets
import sys
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

from vertex_launch.errors import Finding
from vertex_launch.job.job_resource import TRIAL_LABEL, Resource, id_of, trial_ids
from vertex_launch.job.state_dir import private_file
from vertex_launch.local.api import filters
from vertex_launch.local.api.errors import ApiError, invalid
from vertex_launch.local.api.store import Store
from vertex_launch.local.resource_file import now
from vertex_launch.local.running import journal
from vertex_launch.local.running.lines import payload
from vertex_launch.untrusted import jsons

# The fields of a LogEntry that a filter may contain. Source: Cloud Logging API v2, LogEntry.
FIELDS = frozenset(("insertId", "jsonPayload", "labels", "logName", "resource", "severity", "textPayload", "timestamp"))
NEWEST_FIRST = "timestamp desc"
ORDERS = ("", "timestamp", "timestamp asc", NEWEST_FIRST)  # Source: Cloud Logging API v2, entries.list
BLOCK = 2**14  # how many bytes of a journal are read at a time
# The maximum number of bytes to read for a page. A page with fewer entries than requested, or with none, isn't always
# the last page. Source: Cloud Logging API v2, entries.list, nextPageToken.
PAGE_BYTES = 2**19

FIXED = f"ml_job {TRIAL_LABEL} {' '.join(FIELDS)} job_id project_id task_name"  # words that any entry may contain

Key = tuple[str, str]  # a time and an insertId, by which entries are sorted
Entry = tuple[Key, int, Resource]  # a key, the number of bytes that were read, and a LogEntry
KEY = itemgetter(0)


class Query(NamedTuple):
    """A request for one page of log entries between two keys, in ascending or descending order."""

    wanted: filters.Filter
    after: Key
    before: Key
    newest_first: bool
    size: int

    def spans(self, entry: Entry) -> bool:
        return self.after < entry[0] < self.before


@dataclass(frozen=True)
class JobLog:
    """A job's journal, read as LogEntry resources. Each entry has a label that contains the job ID.

    If the job is a trial, the label can contain the tuning job's ID instead.
    Source: Cloud Logging API v2, and the fields that gcloud reads.
    """

    job: Resource
    path: Path
    shown_id: str
    trial: str

    def read(self, query: Query) -> Iterator[Entry]:
        """Yield the entries between the query's two keys, in the query's order. Read the journal in blocks."""
        with contextlib.suppress(OSError):  # the job hasn't printed a line yet
            offsets = range(self.path.stat().st_size)
            begin = bisect_right(offsets, query.after, key=self._first)
            starts = range(begin, bisect_left(offsets, query.before, begin, key=self._first), BLOCK)
            for start in starts[:: -1 if query.newest_first else 1]:
                block = [*filter(query.spans, self._entries(start, min(start + BLOCK, starts.stop), query.wanted.part))]
                yield from block[:: -1 if query.newest_first else 1]

    def _first(self, offset: int) -> Key:
        """Return the key of the first entry that begins at or after this byte offset."""
        return next(map(KEY, self._entries(offset, sys.maxsize)), (filters.LAST, ""))

    def _entries(self, begin: int, end: int, part: str = "") -> Iterator[Entry]:
        """Yield the entries that begin between two byte offsets and contain the lowercase string `part`."""
        _, project, *_, job_id = self.job["name"].split("/")
        words = b"" if part in f"{FIXED}{project}{job_id}{self.shown_id}{self.trial}".lower() else part.encode()
        for offset, text in journal.lines(self.path, begin, end):
            if words not in text.lower():  # parsing the JSON takes fifty times as long
                continue
            try:
                line = jsons.loads(text)
            except ValueError:  # the line isn't complete yet, or the disk was full
                continue
            content = payload(line["line"])
            severity = str(content.pop("severity", line.get("severity", "INFO"))).upper()
            labels = {"job_id": self.shown_id, "project_id": project, "task_name": line["replica"]}
            entry = {
                "insertId": f"{job_id}-{offset:012}",
                "logName": f"projects/{project}/logs/{line['replica']}",
                "timestamp": line["timestamp"],
                "receiveTimestamp": line["timestamp"],
                "severity": severity if severity in filters.SEVERITIES else "DEFAULT",
                "resource": {"type": "ml_job", "labels": labels},
                **({"labels": {TRIAL_LABEL: self.trial}} if self.trial else {}),
                "jsonPayload": content,
            }
            yield (line["timestamp"], entry["insertId"]), len(text), entry


def write_entries(store: Store, request: Mapping[str, Any]) -> Resource:
    """Store the log entries that a client in a replica sends in an entries.write request.

    Raises ApiError INVALID_ARGUMENT if the request doesn't contain a list of entries.
    """
    sent = request.get("entries")
    if not (isinstance(sent, list) and all(isinstance(entry, dict) for entry in sent)):
        raise ApiError("INVALID_ARGUMENT", "entries: the value isn't a list of entries; send a list")
    common = {key: request[key] for key in ("logName", "resource", "labels") if key in request}
    lines = list[str]()
    for entry in sent:
        own = {"insertId": secrets.token_hex(8), "severity": "DEFAULT"}
        time = filters.utc(str(entry.get("timestamp") or now()))
        lines.append(json.dumps(common | own | entry | {"timestamp": time}))
    with open(store.state_dir.entries, "a", encoding="utf-8", opener=private_file) as file:
        file.writelines(f"{line}\n" for line in lines)
    return {}


def _written(path: Path, projects: Sequence[str]) -> Iterator[Entry]:
    """Yield the entries that clients stored for these projects, in no particular order."""
    with contextlib.suppress(FileNotFoundError):
        for _, line in journal.lines(path, 0, sys.maxsize):
            with contextlib.suppress(ValueError):  # the line isn't complete yet
                entry = jsons.loads(line)
                if "/".join(str(entry.get("logName")).split("/")[:2]) in projects:
                    yield (str(entry["timestamp"]), str(entry["insertId"])), len(line), entry


def list_entries(store: Store, request: Mapping[str, Any]) -> Resource:
    """Return a page of entries from the logs of all jobs, in response to an entries.list request.

    If the filter contains a tuning job's ID, as in gcloud's requests, all entries of the job's trials are labeled with
    this ID. Raises ApiError INVALID_ARGUMENT if the request isn't valid.
    """
    projects = request.get("resourceNames")
    if not (projects and isinstance(projects, list)):
        raise ApiError(
            "INVALID_ARGUMENT",
            "resourceNames: the value isn't a list; specify names such as projects/PROJECT",
        )
    expression, query = str(request.get("filter", "")), _query(request)
    searches, state_dir = store.all("hyperparameterTuningJobs"), store.state_dir
    trials = {job: (id_of(search["name"]), id) for search in searches for job, id in trial_ids(search).items()}
    entries = _written(state_dir.entries, projects)
    written = (one for one in entries if query.spans(one) and query.wanted.matches(one[2]))
    choose = heapq.nlargest if query.newest_first else heapq.nsmallest
    sources: list[Iterator[Entry]] = [iter(choose(query.size + 1, written, key=KEY))]  # one more than a page contains
    for job in store.all("customJobs"):
        _, project, *_, job_id = job["name"].split("/")
        search_id, trial = trials.get(job_id, (job_id, ""))
        named = [id for id in (job_id, search_id) if id in expression]
        # Nearly every filter contains one job ID, so the files of other jobs don't have to be read.
        if f"projects/{project}" in projects and (named or "job_id" not in expression):
            sources.append(JobLog(job, state_dir.journal(job_id), named[0] if named else job_id, trial).read(query))
    # If two lines have the same time, gcloud omits the later line unless its insertId is greater.
    return _page(heapq.merge(*sources, key=KEY, reverse=query.newest_first), query)


def _query(request: Mapping[str, Any]) -> Query:
    """Parse an entries.list request. Raises ApiError INVALID_ARGUMENT if the request isn't valid."""
    order, token = (str(request.get(key) or "") for key in ("orderBy", "pageToken"))
    if order not in ORDERS:
        raise invalid([Finding("orderBy", f'"{order[:50]}" isn\'t a valid order', f"use {NEWEST_FIRST}")])
    wanted = filters.parsed(str(request.get("filter") or ""), FIELDS)
    newest_first, size = order == NEWEST_FIRST, filters.page_size(str(request.get("pageSize") or ""))
    after = _key(token) if token and not newest_first else (wanted.since, "")
    before = _key(token) if token and newest_first else (wanted.until, filters.LAST)
    return Query(wanted, after, before, newest_first, size)


def _page(entries: Iterator[Entry], query: Query) -> Resource:
    """Return the next page of entries.

    The page token contains the key of the last entry that was read, so it stays valid if lines are added.
    """
    page, read = list[Resource](), 0
    for key, size, entry in entries:
        read += size
        page += [entry] * query.wanted.matches(entry)
        if len(page) == query.size or read >= PAGE_BYTES:
            return {"entries": page, "nextPageToken": base64.urlsafe_b64encode(json.dumps(key).encode()).decode()}
    return {"entries": page}


def _key(token: str) -> Key:
    """Return the key that a page token contains. Raises ApiError INVALID_ARGUMENT if the token isn't valid."""
    with contextlib.suppress(ValueError):
        match jsons.loads(base64.urlsafe_b64decode(token)):
            case [str(time), str(id)]:
                return time, id
    raise invalid(
        [Finding("pageToken", "the token isn't valid for this list", "request the first page without a token")]
    )

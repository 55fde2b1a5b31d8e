"""Lines of replicas, as Cloud Logging shows them."""

import contextlib
import json
import secrets
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from vertex_launch import jsons
from vertex_launch.job_resource import TRIAL_LABEL, Resource, id_of, trial_ids
from vertex_launch.local.api import filters
from vertex_launch.local.api.errors import ApiError
from vertex_launch.local.resource_file import now
from vertex_launch.local.running.lines import payload
from vertex_launch.state_dir import StateDir, private_file

# The fields of a LogEntry that a request may filter and order by. Source: Cloud Logging API v2, LogEntry.
FIELDS = frozenset(("insertId", "jsonPayload", "labels", "logName", "resource", "severity", "textPayload", "timestamp"))


def entries(job: Resource, path: Path, shown_id: str, trial: str) -> Iterator[Resource]:
    """A job's journal as LogEntry resources, whose label is the job's id or that of the search whose trial it is.

    Source: Cloud Logging API v2, and the fields that gcloud reads.
    """
    _, project, *_, job_id = job["name"].split("/")
    with contextlib.suppress(FileNotFoundError), path.open(encoding="utf-8") as file:
        for number, text in enumerate(file):
            try:
                line = jsons.loads(text)
            except ValueError:  # it is not fully written yet, or the disk was full
                continue
            content = payload(line["line"])
            severity = str(content.pop("severity", line.get("severity", "INFO"))).upper()
            labels = {"job_id": shown_id, "project_id": project, "task_name": line["replica"]}
            yield {
                "insertId": f"{job_id}-{number:09}",
                "logName": f"projects/{project}/logs/{line['replica']}",
                "timestamp": line["timestamp"],
                "receiveTimestamp": line["timestamp"],
                "severity": severity if severity in filters.SEVERITIES else "DEFAULT",
                "resource": {"type": "ml_job", "labels": labels},
                **({"labels": {TRIAL_LABEL: trial}} if trial else {}),
                "jsonPayload": content,
            }


def write_entries(state_dir: StateDir, request: Mapping[str, Any]) -> None:
    """Keep the entries of Cloud Logging's entries.write, which a client in a replica sends; raises ApiError."""
    sent = request.get("entries")
    if not (isinstance(sent, list) and all(isinstance(entry, dict) for entry in sent)):
        raise ApiError("INVALID_ARGUMENT", "entries: is no list of entries; send one")
    common = {key: request[key] for key in ("logName", "resource", "labels") if key in request}
    with open(state_dir.entries, "a", encoding="utf-8", opener=private_file) as file:
        for entry in sent:
            own = {"insertId": secrets.token_hex(8), "timestamp": now(), "severity": "DEFAULT"}
            file.write(f"{json.dumps(common | own | entry)}\n")


def _written(state_dir: StateDir, projects: Sequence[str]) -> Iterator[Resource]:
    """Yield the kept entries of these projects."""
    with contextlib.suppress(FileNotFoundError), state_dir.entries.open(encoding="utf-8") as file:
        for text in file:
            with contextlib.suppress(ValueError):  # it is not fully written yet
                entry = jsons.loads(text)
                if "/".join(str(entry.get("logName")).split("/")[:2]) in projects:
                    yield entry


def list_entries(
    jobs: Sequence[Resource], searches: Sequence[Resource], state_dir: StateDir, request: Mapping[str, Any]
) -> dict[str, Any]:
    """Answer Cloud Logging's entries.list from the logs of these jobs; raises ApiError INVALID_ARGUMENT.

    A filter may name a search by its id, as gcloud's does; then the lines of all its trials have this id.
    """
    projects = request.get("resourceNames")
    if not (projects and isinstance(projects, list)):
        raise ApiError("INVALID_ARGUMENT", "resourceNames: is no list of names; name a project, as projects/PROJECT")
    expression = str(request.get("filter", ""))
    trials = {job: (id_of(search["name"]), id) for search in searches for job, id in trial_ids(search).items()}
    log_entries = [*_written(state_dir, projects)]
    for job in jobs:
        _, project, *_, job_id = job["name"].split("/")
        search_id, trial = trials.get(job_id, (job_id, ""))
        named = [id for id in (job_id, search_id) if id in expression]
        # Nearly every filter names one job; then the files of the others need not be read.
        if f"projects/{project}" in projects and (named or "job_id" not in expression):
            log_entries += entries(job, state_dir.journal(job_id), named[0] if named else job_id, trial)
    # gcloud leaves out a line whose insertId is not above that of another line of the same time before it.
    log_entries.sort(key=lambda entry: (entry["timestamp"], entry["insertId"]))
    parameters = {key: str(request[key]) for key in ("filter", "orderBy", "pageSize", "pageToken") if request.get(key)}
    page, token = filters.page(log_entries, FIELDS, **parameters)
    return {"entries": page} | ({"nextPageToken": token} if token else {})

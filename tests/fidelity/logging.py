"""Cloud Logging."""

from typing import Any

from google.cloud import aiplatform

from launcher.tests.vertex import Json, Service, script
from tests.fidelity.usages import DOCS, pool, rest, usage

LINES = """
import json, sys
print("plain")
print("trouble", file=sys.stderr)
print(json.dumps({"severity": "WARNING", "message": "careful", "step": 3}))
"""


def logged(name: str, **more: Any) -> aiplatform.CustomJob:
    """Run a job that prints three lines."""
    job = aiplatform.CustomJob(name, worker_pool_specs=[pool(*script(LINES), **more)])
    job.run()
    return job


def entries(vertex: Service, text: str, **more: Any) -> list[Json]:
    body = {"resourceNames": ["projects/p"], "filter": text} | more
    found: list[Json] = rest(vertex, "POST", "v2/entries:list", body)["entries"]
    return found


def of_job(job: aiplatform.CustomJob) -> str:
    return f'resource.type="ml_job" AND resource.labels.job_id="{job.name}"'


@usage(f"{DOCS}: View training logs, by job")
def by_job(vertex: Service) -> None:
    """Read the log of a job in chronological order."""
    found = entries(vertex, of_job(logged("by job")), orderBy="timestamp asc")
    assert {entry["jsonPayload"]["message"] for entry in found} == {"plain", "trouble", "careful"}
    assert found == sorted(found, key=lambda entry: entry["timestamp"])


@usage(f"{DOCS}: View training logs, by replica")
def by_replica(vertex: Service) -> None:
    """Read the lines of one replica."""
    job = logged("by replica")
    assert entries(vertex, f'{of_job(job)} AND resource.labels.task_name="workerpool0-0"')
    assert entries(vertex, f'{of_job(job)} AND resource.labels.task_name="workerpool1-0"') == []


@usage(f"{DOCS}: Logging query language, severity")
def by_severity(vertex: Service) -> None:
    """Read entries with severity WARNING or higher."""
    found = entries(vertex, f"{of_job(logged('severe'))} AND severity>=WARNING")
    assert {entry["severity"] for entry in found} == {"WARNING", "ERROR"}


@usage(f"{DOCS}: Structured logging")
def structured(vertex: Service) -> None:
    """Filter by a field of a JSON line."""
    (found,) = entries(vertex, f"{of_job(logged('structured'))} AND jsonPayload.step=3")
    assert (found["severity"], found["jsonPayload"]["message"]) == ("WARNING", "careful")


@usage(f"{DOCS}: Logging query language, text")
def by_text(vertex: Service) -> None:
    """Filter by a substring of the message."""
    assert len(entries(vertex, f'{of_job(logged("text"))} AND jsonPayload.message:"trou"')) == 1


@usage(f"{DOCS}: Logging query language, time")
def by_time(vertex: Service) -> None:
    """Filter by time."""
    job = logged("time")
    assert entries(vertex, f'{of_job(job)} AND timestamp>="2020-01-01T00:00:00Z"')
    assert entries(vertex, f'{of_job(job)} AND timestamp<"2020-01-01T00:00:00Z"') == []


@usage(f"{DOCS}: Method entries.list, pages")
def in_pages(vertex: Service) -> None:
    """Read a log page by page, with the newest lines first."""
    body = {"resourceNames": ["projects/p"], "filter": of_job(logged("pages")), "pageSize": 2}
    first = rest(vertex, "POST", "v2/entries:list", body | {"orderBy": "timestamp desc"})
    body["pageToken"] = first["nextPageToken"]
    second = rest(vertex, "POST", "v2/entries:list", body | {"orderBy": "timestamp desc"})
    assert (len(first["entries"]), len(second["entries"])) == (2, 1)


@usage(f"{DOCS}: Method entries.list, negation")
def without(vertex: Service) -> None:
    """Exclude lines with NOT and OR."""
    found = entries(
        vertex, f"{of_job(logged('without'))} AND NOT severity=ERROR AND (severity=INFO OR severity=WARNING)"
    )
    assert len(found) == 2

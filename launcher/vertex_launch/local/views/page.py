"""Serves the local Vertex's read-only web page, which shows all jobs, their merged logs, and their metric curves.

Job names and log lines are untrusted, so the page shows them as plain text. The browser runs only the page's
own script.
Source: Content Security Policy Level 3, and Trusted Types, both W3C.
"""

import base64
import contextlib
import hashlib
import json
import math
import re
from pathlib import Path
from typing import Any

from starlette.responses import HTMLResponse, Response

from vertex_launch.job.job_resource import id_of, trial_ids
from vertex_launch.job.spec import CHIEF_REPLICA
from vertex_launch.local.api.errors import ApiError
from vertex_launch.local.api.http import Call, Handler, Route
from vertex_launch.local.api.store import Store
from vertex_launch.local.jobs import experiments
from vertex_launch.local.jobs.custom_jobs import COLLECTION, Jobs
from vertex_launch.local.jobs.metric_file import MetricFile
from vertex_launch.local.jobs.tuning import COLLECTION as SEARCHES
from vertex_launch.local.running import lines as printed
from vertex_launch.local.views.jobs import summaries
from vertex_launch.untrusted import jsons
from vertex_launch.untrusted.printable import plain
from vertex_launch.untrusted.regular_file import open_regular

PAGE = Path(__file__).with_name("page.html")
LISTED = 1000  # the maximum number of jobs in the list
CHUNK = 2**22  # how many bytes of a log one response covers
LINES = 2000  # the maximum number of lines in one response and on the page
LONGEST_LINE = 10_000  # the maximum number of characters of a line

HEADERS = {
    "Cache-Control": "no-cache",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}

Points = dict[str, list[tuple[float, float]]]  # metric -> (step, value) in the order of arrival


def routes(store: Store, jobs: Jobs) -> list[Route]:
    """Return the read-only routes of the web page and of the two data requests that the page's script sends.

    The / URL and the URLs of all jobs return the same page, because the page's script reads the URL.
    """
    show = shown(PAGE)

    def all_jobs(call: Call) -> Response:
        return _answer(call, {"jobs": summaries(store, jobs, LISTED)})

    def one_log(call: Call, id: str) -> Response:
        start = call.query.get("from", "0")
        if not (job := next((job for job in store.all(COLLECTION) if id_of(job["name"]) == id), None)):
            raise ApiError("NOT_FOUND", f"custom job {id} doesn't exist")
        if not re.fullmatch("[0-9]{1,15}", start):
            raise ApiError(
                "INVALID_ARGUMENT", f'from: "{start}" isn\'t a valid position; use the value of `next` from a response'
            )
        log = part(store.state_dir.journal(id), int(start))
        points = experiments.points(store, job) | log["points"] | reported(store, id)
        return _answer(call, log | {"points": points})

    return [
        ("GET", "/", show),
        ("GET", "/(?P<id>[0-9]+)", show),
        ("GET", "/{parent:parent}/{collection}/{id}", show),
        ("GET", "/page/jobs", all_jobs),
        ("GET", "/page/jobs/{id}", one_log),
    ]


def shown(file: Path) -> Handler:
    """Return a handler that serves an HTML page.

    The page's security policy permits only the page's own style and script.
    """
    page = file.read_text(encoding="utf-8")
    (style,) = re.findall("<style>(.*?)</style>", page, re.DOTALL)
    (script,) = re.findall("<script>(.*?)</script>", page, re.DOTALL)
    policy = (
        f"default-src 'none'; style-src {_source(style)}; script-src {_source(script)};"
        " connect-src 'self'; img-src data:;"
        " base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'"
    )
    return lambda call, **parts: HTMLResponse(page, headers=HEADERS | {"Content-Security-Policy": policy})


def part(path: Path, start: int) -> dict[str, Any]:
    """Return the last lines and all metrics from the journal chunk that begins at byte `start`."""
    data = b""
    with contextlib.suppress(FileNotFoundError), open_regular(path) as file:  # the job hasn't printed a line yet
        file.seek(start)
        data = file.read(CHUNK)
    # A line that is longer than a chunk is skipped, because no part of it is valid JSON.
    end = data.rfind(b"\n") + 1 or (len(data) if len(data) == CHUNK else 0)
    lines: list[dict[str, str]] = []
    points: Points = {}
    for raw in data[:end].split(b"\n"):
        try:
            entry = jsons.loads(raw)
        except ValueError:
            continue
        payload = printed.payload(entry["line"])
        lines.append(_line(entry, payload))
        if entry["replica"] == CHIEF_REPLICA:  # only the chief's metrics count
            _collect(payload, points)
    return {
        "path": str(path),
        "lines": lines[-LINES:],
        "omitted": max(len(lines) - LINES, 0),  # how many earlier lines are missing
        "points": points,
        "next": start + end,  # the byte at which the next part begins
        "more": len(data) == CHUNK,  # whether the next part already exists
    }


def reported(store: Store, id: str) -> Points:
    """Return the finite measurements that a job has reported. Only the trials of tuning jobs report measurements."""
    searches = [search for search in store.all(SEARCHES) if id in trial_ids(search)]
    names = [metric["metricId"] for search in searches for metric in search["studySpec"]["metrics"]]
    steps = MetricFile(store.state_dir.metrics(id), names).read(ended=True) if names else []
    values: Points = {name: [(one.step, one.metrics.get(name, math.nan)) for one in steps] for name in names}
    finite = {name: [pair for pair in pairs if math.isfinite(pair[1])] for name, pairs in values.items()}
    return {name: pairs for name, pairs in finite.items() if pairs}


def _line(entry: dict[str, str], payload: dict[str, Any]) -> dict[str, str]:
    """Return a log line as a terminal shows it, but without colors."""
    message = payload.get("message")
    text = plain(message if isinstance(message, str) else entry["line"])
    shown = text if len(text) <= LONGEST_LINE else f"{text[:LONGEST_LINE]} ... ({len(text)} characters)"
    severity = str(payload.get("severity", "")).upper()[:9]
    return {"time": entry["timestamp"], "replica": entry["replica"], "severity": severity, "text": shown}


def _collect(payload: dict[str, Any], points: Points) -> None:
    """Add the numbers that a line reports to `points`. Ignore lines without a step."""
    step = _number(payload.get("step"))
    if step is None:
        return
    for name, value in payload.items():
        number = _number(value)
        if name not in ("step", "steps") and number is not None:
            points.setdefault(name, []).append((step, number))


def _number(value: Any) -> float | None:
    """Return a number as a float. Return None for booleans, integers too large for a float, and non-numbers."""
    with contextlib.suppress(OverflowError):
        return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
    return None


def _answer(call: Call, content: Any) -> Response:
    """Return content as JSON, or status 304 if the browser already has it."""
    body = json.dumps(content, default=vars, separators=(",", ":")).encode()
    tag = f'"{hashlib.blake2b(body, digest_size=12).hexdigest()}"'
    headers = HEADERS | {"ETag": tag}
    if call.headers.get("if-none-match") == tag:
        return Response(status_code=304, headers=headers)
    return Response(body, headers=headers, media_type="application/json")


def _source(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"

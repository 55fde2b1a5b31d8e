"""Measure how long entries.list, `logs --grep` and `run` take for a job that logs a million lines.

    python benchmarks/logs.py PROJECT

Run this benchmark with a project's own Python. The benchmark writes the lines to the journal of a finished job.
"""

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psutil
from service import Service, service

LINES = 10**6
SECONDS = 600
STEP = timedelta(microseconds=20)  # between two lines
BEGIN = datetime.now(UTC) - timedelta(hours=1)
PRINTER = f"for number in range({LINES}): print('line', number, 'x' * 80)"
CONTAINER = {"imageUri": "image", "command": [sys.executable, "-c", PRINTER]}


def main(project: Path) -> None:
    with tempfile.TemporaryDirectory() as folder, service(project, Path(folder)) as vertex:
        job = vertex.create()
        vertex.wait(job)
        id = job.rpartition("/")[2]
        write(Path(folder) / f".vertex/jobs/{id}/log.jsonl")
        pages(vertex, id)
        grep(project, Path(folder), vertex, id)
        run(project, Path(folder))


def write(journal: Path) -> None:
    """Write a journal in the format that the local Vertex service uses for replicas."""
    with journal.open("w") as file:
        for number in range(LINES):
            line = f"step {number}/{LINES}  loss {1 / (number + 1):.4f}  {'x' * 50}"
            file.write(f"{json.dumps({'timestamp': moment(number), 'replica': 'workerpool0-0', 'line': line})}\n")
    print(f"{LINES} lines, {journal.stat().st_size / 1e6:.0f} MB", flush=True)


def moment(number: int) -> str:
    return f"{BEGIN + number * STEP:%Y-%m-%dT%H:%M:%S.%f}Z"


def pages(vertex: Service, id: str) -> None:
    """Read two pages at each position. The request for the second page contains a page token."""
    for order in ("asc", "desc"):
        for place in (0, 0.5, 0.999):
            bound = moment(int(LINES * (place if order == "asc" else 1 - place)))
            symbol = ">=" if order == "asc" else "<="
            text = f'resource.labels.job_id="{id}" AND timestamp{symbol}"{bound}"'
            body: dict[str, Any] = {"filter": text, "orderBy": f"timestamp {order}", "pageSize": 1000}
            first, answer = page(vertex, body)
            second, _ = page(vertex, body | {"pageToken": answer.get("nextPageToken", "")})
            memory = f"{vertex.megabytes():.0f} MB in the service"
            print(f"timestamp {order}, at {place:.1%}: {first:.3f} s, next page {second:.3f} s, {memory}", flush=True)


def page(vertex: Service, body: dict[str, Any]) -> tuple[float, dict[str, Any]]:
    began = time.perf_counter()
    answer = vertex.call("POST", "entries:list", {"resourceNames": ["projects/p"], **body}, "v2")
    return time.perf_counter() - began, answer


def grep(project: Path, folder: Path, vertex: Service, id: str) -> None:
    """Find a line at the beginning of the log and a line at the end of the log."""
    environment = os.environ | {"PYTHONPATH": str(project), "VERTEX_ENDPOINT": vertex.endpoint}
    command = [sys.executable, "-m", "vertex_launch", "logs", id, "--since", "2h", "--grep", f"step (9|{LINES - 1})/"]
    began = time.perf_counter()
    process = subprocess.Popen(command, cwd=folder, env=environment, stdout=subprocess.PIPE)
    assert process.stdout is not None
    peak = Peak(process.pid)
    for line in process.stdout:
        print(f"--grep after {time.perf_counter() - began:.1f} s: {line.decode().strip()[:60]}", flush=True)
    process.wait(timeout=SECONDS)
    print(f"--grep read all lines after {time.perf_counter() - began:.1f} s, with {peak.megabytes:.0f} MB", flush=True)


class Peak(threading.Thread):
    """The peak resident set size of a process in units of 10^6 bytes."""

    def __init__(self, pid: int) -> None:
        super().__init__(daemon=True)
        self._process = psutil.Process(pid)
        self.megabytes = 0.0
        self.start()

    def run(self) -> None:
        with contextlib.suppress(psutil.NoSuchProcess):
            while True:
                self.megabytes = max(self.megabytes, self._process.memory_info().rss / 1e6)
                time.sleep(0.1)


def run(project: Path, folder: Path) -> None:
    """Run a job that prints a million lines, and write the output to a file."""
    pool = {"machineSpec": {"machineType": "n1-standard-8"}, "replicaCount": 1, "containerSpec": CONTAINER}
    (folder / "job.yaml").write_text(json.dumps({"workerPoolSpecs": [pool]}))
    command = [sys.executable, "-m", "vertex_launch", "run", "job.yaml"]
    began = time.perf_counter()
    with (folder / "printed").open("w") as output:
        environment = os.environ | {"PYTHONPATH": str(project)}
        subprocess.run(command, cwd=folder, env=environment, stdout=output, check=True, timeout=SECONDS)
    print(f"run: {LINES} lines after {time.perf_counter() - began:.1f} s", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())

"""Measure the memory, response times and open file descriptors of the local Vertex for many jobs and calls.

    python benchmarks/service.py PROJECT

Run this benchmark with a project's own Python. The benchmark starts a service in a temporary folder and sends requests
to the service's REST API.
"""

import contextlib
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

PARENT = "projects/p/locations/us-central1"
SETTINGS = 'project = "p"\nregion = "us-central1"\nbucket = "b"\nimage = "image"\n'
STARTS = 20
LISTED = 500
QUEUED = 200
CAPACITY = 64
NAP = 4
SECONDS = 120
IDLE = 8  # seconds; uvicorn closes a connection without requests after 5
CALLS, CHANNELS = 2000, 20
# A replica that uses the SDK's default transport: new channels, with as many parallel calls as the bridge serves.
CALL = f"""
from concurrent.futures import ThreadPoolExecutor
from google.cloud import aiplatform_v1 as vertex
options = {{"api_endpoint": "us-central1-aiplatform.googleapis.com"}}
for _ in range({CHANNELS}):
    jobs, models = (kind(client_options=options) for kind in (vertex.JobServiceClient, vertex.ModelServiceClient))
    methods = jobs.list_custom_jobs, jobs.list_hyperparameter_tuning_jobs, models.list_models
    with ThreadPoolExecutor(8) as threads:
        [*threads.map(lambda i: methods[i % 3](parent="{PARENT}"), range({CALLS // CHANNELS}))]
"""


class Service:
    """A running local Vertex service and its process."""

    def __init__(self, endpoint: str, pid: int) -> None:
        self.endpoint = endpoint
        self._pid = pid

    def call(self, method: str, path: str, body: Any = None, version: str = "v1") -> Any:
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(f"{self.endpoint}/{version}/{path}", data, headers, method=method)
        with urllib.request.urlopen(request, timeout=SECONDS) as answer:
            return json.loads(answer.read())

    def create(self, workers: int = 0, name: str = "job", command: Sequence[str] = ("true",)) -> str:
        def pool(count: int) -> dict[str, Any]:
            container = {"imageUri": "image", "command": [*command]}
            return {
                "machineSpec": {"machineType": "n1-standard-8"},
                "replicaCount": count,
                "containerSpec": container,
            }

        pools = [pool(1), *([pool(workers)] if workers else [])]
        body = {"displayName": name, "jobSpec": {"workerPoolSpecs": pools}}
        return str(self.call("POST", f"{PARENT}/customJobs", body)["name"])

    def wait(self, name: str) -> dict[str, Any]:
        deadline = time.monotonic() + SECONDS
        while time.monotonic() < deadline:
            job: dict[str, Any] = self.call("GET", name)
            if job["state"] in ("JOB_STATE_SUCCEEDED", "JOB_STATE_FAILED"):
                assert job["state"] == "JOB_STATE_SUCCEEDED", job
                return job
            time.sleep(0.01)
        raise SystemExit(f"{name} did not end")

    def megabytes(self) -> float:
        """Return the service's resident set size in units of 10^6 bytes."""
        pages = int(Path(f"/proc/{self._pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / 1e6

    def descriptors(self) -> int:
        """Wait until idle connections are closed, and return the number of open files and sockets."""
        time.sleep(IDLE)
        return len([*Path(f"/proc/{self._pid}/fd").iterdir()])


def main(project: Path) -> None:
    with tempfile.TemporaryDirectory() as folder, service(project, Path(folder)) as vertex:
        print(f"idle service: {vertex.megabytes():.0f} MB", flush=True)
        waits = [_seconds_to_running(vertex.wait(vertex.create())) for _ in range(STARTS)]
        print(f"create to RUNNING: median {statistics.median(waits):.3f} s, largest {max(waits):.3f} s", flush=True)
        began = time.perf_counter()
        # The job ends when its chief exits, so the chief waits until all others have started.
        name = vertex.create(workers=CAPACITY - 1, command=("sh", "-c", f"echo started; sleep {NAP}"))
        vertex.wait(name)
        seconds = time.perf_counter() - began
        started = (Path(folder) / ".vertex/jobs" / name.rpartition("/")[2] / "log.jsonl").read_text().count("started")
        print(f"{started} replicas that sleep {NAP} s: the job finished after {seconds:.1f} s", flush=True)
        began = time.perf_counter()
        names = [vertex.create(name=f"queued-{i}") for i in range(QUEUED)]
        for name in names:
            vertex.wait(name)
        print(f"{QUEUED} jobs created in parallel: all succeeded after {time.perf_counter() - began:.1f} s", flush=True)
        for _ in range(LISTED - QUEUED - STARTS - 1):
            vertex.wait(vertex.create())
        began = time.perf_counter()
        listed = vertex.call("GET", f"{PARENT}/customJobs?pageSize=1000")["customJobs"]
        print(f"{len(listed)} jobs listed: {time.perf_counter() - began:.3f} s", flush=True)
        vertex.wait(vertex.create(command=("python", "-c", CALL)))
        print(f"descriptors after {LISTED + 1} jobs and {CALLS:,} gRPC calls: {vertex.descriptors()}", flush=True)


@contextlib.contextmanager
def service(project: Path, folder: Path) -> Iterator[Service]:
    (folder / "vertex.toml").write_text(SETTINGS)
    command = [sys.executable, "-m", "vertex_launch", "emulate", "--port", "0", "--capacity", str(CAPACITY)]
    environment = os.environ | {"PYTHONPATH": str(project)}
    printed = folder / "printed"
    with printed.open("w") as output:
        process = subprocess.Popen(command, cwd=folder, env=environment, stdout=output, stderr=subprocess.STDOUT)
    try:
        deadline = time.monotonic() + SECONDS
        while not (found := re.search(r"Local Vertex at (\S+):", printed.read_text())):
            assert process.poll() is None, printed.read_text()
            assert time.monotonic() < deadline, printed.read_text()
            time.sleep(0.05)
        time.sleep(1)
        yield Service(found[1], process.pid)
    finally:
        process.terminate()
        process.wait(timeout=SECONDS)


def _seconds_to_running(job: dict[str, Any]) -> float:
    return _moment(job["startTime"]) - _moment(job["createTime"])


def _moment(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())

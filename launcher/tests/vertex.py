"""A local Vertex for tests: the real service in a process and a folder of its own."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from launcher.tests.running import DEADLINE, SOURCE
from vertex_launch.job.contract import project_number

BY_ID = "projects/p/locations/us-central1"  # as files of the service, replicas and errors name it
PARENT = f"projects/{project_number('p')}/locations/us-central1"  # as answers do
SETTINGS = 'project = "p"\nregion = "us-central1"\nbucket = "b"\nimage = "image"\n'
STARTED = 240.0  # seconds until the service must listen
DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # whatever http_proxy a test sets
ENDED = ("SUCCEEDED", "FAILED", "CANCELLED", "EXPIRED")

Json = dict[str, Any]


@dataclass(frozen=True)
class Service:
    """A running local Vertex and a plain client of it."""

    endpoint: str
    folder: Path
    process: "subprocess.Popen[bytes]"

    @property
    def state_dir(self) -> Path:
        return self.folder / ".vertex"

    def call(
        self, method: str, path: str, body: Any = None, headers: Mapping[str, str] | None = None
    ) -> tuple[int, Json]:
        """Status and JSON of one request; a `body` of bytes goes as it is."""
        data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"{self.endpoint}{path}", data, method=method)
        for name, value in ({"Content-Type": "application/json"} | dict(headers or {})).items():
            request.add_header(name, value)
        try:
            with DIRECT.open(request, timeout=DEADLINE) as answer:
                return answer.status, json.loads(answer.read() or "{}")
        except urllib.error.HTTPError as error:
            return error.code, json.loads(error.read() or "{}")

    def get(self, name: str) -> Json:
        status, resource = self.call("GET", f"/v1/{name}")
        assert status == 200, resource
        return resource

    def create(self, body: Json, collection: str = "customJobs") -> str:
        """The new resource's name."""
        status, resource = self.call("POST", f"/v1/{PARENT}/{collection}", body)
        assert status == 200, resource
        return str(resource["name"])

    def wait(self, name: str, *states: str, seconds: float = DEADLINE) -> Json:
        """The resource once it is in one of these states, by default in one that is the last."""
        deadline = time.monotonic() + seconds
        while True:
            resource = self.get(name)
            state = resource["state"].rpartition("_STATE_")[2]
            if state in (states or ENDED):
                return resource
            assert state not in ENDED, resource
            assert time.monotonic() < deadline, f"after {seconds:g} s still {resource}"
            time.sleep(0.05)  # each request costs the service milliseconds

    def log(self, name: str, whose: str = "workerpool") -> list[str]:
        """What the replicas of a job printed, or the service did, each line behind its replica."""
        path = self.state_dir / "jobs" / name.rpartition("/")[2] / "log.jsonl"
        entries = map(json.loads, path.read_text().splitlines())
        return [f"{entry['replica']}: {entry['line']}" for entry in entries if entry["replica"].startswith(whose)]


@contextlib.contextmanager
def service(
    folder: Path, *flags: str, settings: str = "[env]\nPYTHONPATH = true\n", python: str = sys.executable
) -> Iterator[Service]:
    """Start the service in a folder of its own; it is ended with all its jobs."""
    (folder / "vertex.toml").write_text(SETTINGS + settings)
    command = [python, "-m", "vertex_launch", "emulate", "--port", "0", *flags]
    environ = os.environ | {"PYTHONPATH": str(SOURCE)}
    printed = folder / "service.log"
    earlier = printed.read_text().count("Local Vertex at ") if printed.exists() else 0
    with printed.open("a") as output:
        process = subprocess.Popen(command, cwd=folder, env=environ, stdout=output, stderr=output)
    try:
        yield Service(_endpoint(process, printed, earlier), folder, process)
    finally:
        stop(process)


def stop(process: "subprocess.Popen[bytes]", number: int = signal.SIGTERM) -> None:
    """End the service and wait until it is gone."""
    if process.poll() is None:
        process.send_signal(number)
    try:
        process.wait(timeout=DEADLINE)
    except subprocess.TimeoutExpired:
        process.kill()
        raise


def custom_job(*command: str, workers: int = 0, name: str = "job", **more: Any) -> Json:
    """A custom job that runs one command in every replica; `more` goes into its spec."""

    def pool(count: int) -> Json:
        container = {"imageUri": "image", "command": list(command)}
        return {"machineSpec": {"machineType": "n1-standard-8"}, "replicaCount": count, "containerSpec": container}

    pools = [pool(1)] + ([pool(workers)] if workers else [])
    return {"displayName": name, "jobSpec": {"workerPoolSpecs": pools, **more}}


def script(text: str) -> tuple[str, ...]:
    """A command that runs a Python script."""
    return ("python", "-c", text)


def _endpoint(process: "subprocess.Popen[bytes]", printed: Path, earlier: int) -> str:
    """The address in the service's introduction, the first one behind `earlier` others."""
    deadline = time.monotonic() + STARTED
    while len(found := re.findall(r"^Local Vertex at (http://\S+):", printed.read_text(), re.MULTILINE)) <= earlier:
        assert process.poll() is None, f"the service ended:\n{printed.read_text()}"
        assert time.monotonic() < deadline, f"the service did not start:\n{printed.read_text()}"
        time.sleep(0.02)
    return str(found[-1])

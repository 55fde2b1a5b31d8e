"""Replicas that print nothing for long: the launcher says who computes, who waits, and for whom."""

import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psutil
import pytest

from launcher.tests.running import SETTINGS, deadline, eventually, job
from launcher.tests.test_engine import replica
from vertex_launch.local.running import silence
from vertex_launch.local.running.engine import Execution
from vertex_launch.local.running.namespaces import isolation
from vertex_launch.local.running.prepare import PreparedJob
from vertex_launch.local.running.restart_policy import Policy
from vertex_launch.local.running.silence import SILENT_SECONDS, Activity, Silence, describe

# The chief accepts a connection and computes; workers connect and wait for a byte that never comes.
CHIEF = (
    "import socket; s = socket.create_server(('127.0.0.1', PORT)); c = [s.accept() for _ in range(1)]\nwhile True: pass"
)
WORKER = "import socket; socket.create_connection(('127.0.0.1', PORT)).recv(1)"
LONER = "import time; time.sleep(600)"


@contextmanager
def processes(**programs: str) -> Iterator[dict[str, int]]:
    """Run Python programs by name, until the block ends; yields the number of each."""
    with ExitStack() as stack:
        started = {}
        for name, program in programs.items():
            process = stack.enter_context(subprocess.Popen([sys.executable, "-c", program]))
            stack.callback(process.kill)
            started[name] = process.pid
        yield started


def test_of_silent_replicas_it_is_said_who_computes_who_waits_and_who_is_alone(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    chief, worker = (program.replace("PORT", str(port)) for program in (CHIEF, WORKER))
    with processes(chief=chief) as first:
        assert eventually(lambda: bool(psutil.Process(first["chief"]).net_connections("tcp")))
        with processes(worker=worker, loner=LONER) as others:
            numbers = first | others
            assert eventually(lambda: psutil.Process(numbers["chief"]).cpu_times().user > 0.5)
            before = silence.activities(numbers)
            assert eventually(lambda: psutil.Process(numbers["chief"]).cpu_times().user > 2)
            told = describe(before, silence.activities(numbers))
    assert "chief is computing, worker is sleeping (connected to chief), loner is sleeping (connected to no" in told
    assert told.endswith(". worker and loner might be waiting for chief")


def test_a_long_silence_is_told_once_and_a_line_begins_another_one() -> None:
    silence, told = Silence(), []
    for seconds in (
        0,
        30,
        SILENT_SECONDS - 5,
        SILENT_SECONDS + 1,
        SILENT_SECONDS + 300,
        2,
        SILENT_SECONDS - 1,
        SILENT_SECONDS,
    ):
        told.append(bool(silence.look(seconds, {})))
    assert told == [False, False, False, True, False, False, False, True]


def test_a_stopped_replica_is_named() -> None:
    now = {"workerpool0-0": Activity(5, stopped=True), "workerpool1-0": Activity(9)}
    told = describe({"workerpool0-0": Activity(5), "workerpool1-0": Activity(0)}, now)
    assert "workerpool0-0 is stopped, workerpool1-0 is computing. workerpool0-0 might be waiting" in told


SILENT_CHIEF = """
import os, socket, time
server = socket.create_server(("", int(os.environ["MASTER_PORT"])))
worker, _ = server.accept()
until = time.monotonic() + 80
while time.monotonic() < until: pass
"""
SILENT_WORKER = """
import os, socket, time
while True:
    try:
        socket.create_connection((os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))).recv(1)
    except ConnectionRefusedError:
        time.sleep(0.1)
"""


TALKING_CHIEF = """
import time
for second in range(70):
    print("step", second, flush=True)
    time.sleep(1)
"""


@pytest.mark.proof
def test_a_silent_worker_beside_a_chief_that_has_just_ended_is_no_silence(tmp_path: Path) -> None:
    shown: list[str] = []
    with deadline():
        workers = replica("import time; time.sleep(72)", 0), replica("import time; time.sleep(72)", 1)
        job = PreparedJob((replica(TALKING_CHIEF), *workers), tmp_path, Policy(grace=30), isolation())
        Execution(job, lambda _, line, __: shown.append(line)).run()
    assert [line for line in shown if not line.startswith("step")] == []


@pytest.mark.proof
def test_a_job_that_prints_nothing_for_a_minute_says_who_waits_for_whom(tmp_path: Path) -> None:
    chief, worker = (
        job(command=["python", "-c", script])["workerPoolSpecs"][0] for script in (SILENT_CHIEF, SILENT_WORKER)
    )
    (tmp_path / "vertex.toml").write_text(SETTINGS)
    document = {"workerPoolSpecs": [chief, worker], "scheduling": {"timeout": "300s"}}
    (tmp_path / "job.json").write_text(json.dumps(document))
    command = [sys.executable, "-m", "vertex_launch", "run", "job.json"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    (line,) = [line for line in done.stdout.splitlines() if "no replica has printed" in line]
    assert line == (
        "[workerpool0-0] no replica has printed a line for 60 s: workerpool0-0 is computing, workerpool1-0 is"
        " sleeping (connected to workerpool0-0). workerpool1-0 might be waiting for workerpool0-0"
    )

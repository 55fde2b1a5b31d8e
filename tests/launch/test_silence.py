"""Replicas that print nothing for long: the launcher says who computes, who waits, and for whom."""

import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psutil

from tests.launch.running import eventually
from vertex_launch.local.running import silence
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
    assert "chief computes, worker sleeps, connected to chief, loner sleeps, connected to no other replica" in told
    assert told.endswith("; worker and loner may wait for chief")


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
    assert "workerpool0-0 is stopped, workerpool1-0 computes; workerpool0-0 may wait" in told

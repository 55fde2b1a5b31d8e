"""Worlds: which replicas were connected to one another, and who has met nobody; with sockets of real processes."""

import math
import random
import socket
import threading
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from launcher.tests.running import DEADLINE
from launcher.tests.test_engine import replica
from vertex_launch.local.running.connections import opened, visible
from vertex_launch.local.running.engine import Execution
from vertex_launch.local.running.hosts import free_ports
from vertex_launch.local.running.namespaces import isolation
from vertex_launch.local.running.prepare import PreparedJob
from vertex_launch.local.running.restart_policy import Policy
from vertex_launch.local.running.worlds import Worlds

pytestmark = pytest.mark.skipif(not visible(), reason="only Linux lists the connections of all processes")

# Each replica has an address of its own, the first of HOSTS is the chief's; all use one port.
PRELUDE = """
import os, socket, subprocess, sys, time
rank, hosts, port = int(os.environ["RANK"]), os.environ["HOSTS"].split(), int(os.environ["PORT"])
def accept(count, host=hosts[rank], port=port):
    server = socket.create_server((host, port))
    return server, [server.accept()[0] for _ in range(count)]
def connect(host=hosts[0], port=port):
    while True:
        try: return socket.create_connection((host, port))
        except ConnectionRefusedError: time.sleep(0.05)
def hold(): time.sleep(5)  # as long as a short training, on a busy machine
def worker(program, world="2"):  # of torch's agent
    environ = os.environ | {"LOCAL_WORLD_SIZE": "1", "WORLD_SIZE": world}
    return subprocess.Popen([sys.executable, "-c", os.environ["PRELUDE"] + program], env=environ)
"""
NOBODY = (
    "2 processes, 2 worlds: workerpool0-0; workerpool1-0. Training processes in different worlds weren't connected."
)
SHORT = "a connection is short"
# A job: what its replicas do, chief first, and how the only note on its worlds begins.
JOBS: Mapping[str, tuple[list[str], str]] = {
    "all come to the chief": (["held = accept(1); hold()", "held = connect(); hold()"], "2 processes, 1 world"),
    "nobody is connected": (["hold()"] * 2, NOBODY),
    "one is left": (
        ["held = accept(1); hold()", "held = connect(); hold()", "hold()"],
        "3 processes, 2 worlds: workerpool0-0 and workerpool1-0; workerpool1-1. Tr",
    ),
    "each comes to its own host name": (
        ["server = socket.create_server((hosts[rank], port)); held = connect(hosts[rank]), server.accept(); hold()"]
        * 2,
        NOBODY,
    ),
    "forked processes share a socket": (
        ["held = accept(1); hold()", "held = connect(); os.fork(); hold()"],
        "2 processes, 1 world",
    ),
    "a replica has more processes than another": (
        ["held = accept(2); hold()", "own = [os.fork() or (connect(), hold(), os._exit(0)) for _ in range(2)]; hold()"],
        "2 replicas, 1 world",
    ),
    "agents and workers are connected": (
        [
            "one = worker('held = accept(1, port=port + 1); hold()'); held = accept(1); one.wait()",
            "held = connect(); worker('held = connect(port=port + 1); hold()').wait()",
        ],
        "2 processes, 1 world",
    ),
    "a process and its child are connected": (
        [
            "held = accept(1); own = os.fork() and os.wait() or (accept(1, port=port + 1), hold())",
            "held = connect(); own = os.fork() and os.wait() or (connect(port=port + 1), hold())",
        ],
        "2 processes, 1 world",
    ),
    "agents are connected, but not their workers": (
        ["one = worker('hold()'); held = accept(1); one.wait()", "held = connect(); worker('hold()').wait()"],
        NOBODY,
    ),
    "agents have worlds of their own": (
        ["one = worker('hold()', world='1'); held = accept(1); one.wait()", "held = connect(); worker('', world='1')"],
        NOBODY,
    ),
    "a parameter server is between all": (
        [*["held = connect(hosts[3]); hold()"] * 3, "held = accept(3); hold()"],
        "3 processes, 1 world",
    ),
    SHORT: (["accept(1)[1][0].close(); hold()", "connect().close(); hold()"], "2 processes, 1 world"),
    "the chief is at localhost": (
        ["held = accept(1, ''); hold()", "held = connect('localhost'); hold()"],
        "2 processes, 1 world",
    ),
}


@pytest.fixture(scope="module")
def notes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[str, ...]]:
    """The notes of each job; all run at the same time."""
    jobs = {name: job(tmp_path_factory.mktemp("job"), programs) for name, (programs, _) in JOBS.items()}
    found: dict[str, tuple[str, ...]] = {}

    def run(name: str) -> None:
        found[name] = Execution(jobs[name], lambda *_: None).run().notes

    threads = [threading.Thread(target=run, args=(name,)) for name in jobs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE)
    return found


def job(folder: Path, programs: list[str]) -> PreparedJob:
    """A job of a chief, two workers and a parameter server, as far as there are programs."""
    hosts = [f"127.{random.randrange(64, 128)}.{random.randrange(256)}.{1 + rank}" for rank, _ in enumerate(programs)]
    names, port = " ".join(hosts), str(free_ports(1)[0])
    places = [(0, 0), (1, 0), (1, 1), (2, 0)]
    replicas = [
        replace(
            replica(PRELUDE + program, PRELUDE=PRELUDE, RANK=str(rank), HOSTS=names, PORT=port),
            pool=places[rank][0],
            index=places[rank][1],
        )
        for rank, program in enumerate(programs)
    ]
    addresses = {one.name: host for one, host in zip(replicas, hosts, strict=True) if one.trains}
    return PreparedJob(tuple(replicas), folder, Policy(grace=60), isolation(), addresses=addresses)


@pytest.mark.parametrize("name", JOBS)
def test_processes_and_worlds_are_counted_if_they_are_known(name: str, notes: dict[str, tuple[str, ...]]) -> None:
    expected = JOBS[name][1]
    counts = [note[: len(expected)] for note in notes[name] if not note.startswith("localhost")]
    assert counts == [expected] or (name == SHORT and not counts)  # it may be seen by chance


def test_a_rendezvous_that_fails_on_a_cluster_is_told(notes: dict[str, tuple[str, ...]]) -> None:
    told = [note for all_notes in notes.values() for note in all_notes if note.startswith("localhost")]
    assert told == [
        note for note in notes["the chief is at localhost"] if " connected workerpool1-0 to workerpool0-0" in note
    ]
    assert len(told) == 1


def test_a_job_that_waits_for_machines_looks_for_no_connections() -> None:
    worlds = Worlds({"workerpool0-0": "127.0.0.1", "workerpool1-0": "127.0.0.2"})
    worlds.look({})
    assert worlds.due == math.inf, "a service with hundreds of such jobs would be busy with nothing"


def test_a_new_connection_is_noticed_although_connections_are_listed_rarely() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        before = opened()
        with socket.create_connection(server.getsockname()):
            assert opened() != before

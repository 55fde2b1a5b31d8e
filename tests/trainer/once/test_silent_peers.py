"""Who is named when peers fall silent: real processes, which are stopped, and real datagrams."""

import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager

import pytest

from tests.training import DEADLINE, PROJECT, eventually
from trainer.cluster import stuck
from trainer.cluster.heartbeat import Heartbeat
from trainer.cluster.spec import Cluster, Node
from vertex_launch.local.running.hosts import free_addresses

NAMES = ("workerpool0-0", "workerpool1-0", "workerpool1-1")
REPLICA = """
import sys
from trainer.cluster.heartbeat import Heartbeat
from trainer.cluster.spec import Cluster, Node

name, *nodes = sys.argv[1:]
heartbeat = Heartbeat(Cluster(tuple(Node(*node.split("=")) for node in nodes), name))
sys.stdin.read()
heartbeat.finish()
"""


@contextmanager
def workers() -> Iterator[tuple[Heartbeat, list["subprocess.Popen[bytes]"]]]:
    """The chief's heartbeat, and two workers, which are processes, when it has heard of both."""
    nodes = tuple(map(Node, NAMES, free_addresses(3)))
    words = [f"{node.name}={node.address}" for node in nodes]
    with ExitStack() as stack:
        processes = []
        for name in NAMES[1:]:
            command = [sys.executable, "-c", REPLICA, name, *words]
            processes.append(stack.enter_context(subprocess.Popen(command, cwd=PROJECT, stdin=subprocess.PIPE)))
            stack.callback(processes[-1].kill)
        heartbeat = Heartbeat(Cluster(nodes, NAMES[0]))
        assert eventually(lambda: len(heartbeat.heard) == 2)
        yield heartbeat, processes


def test_the_one_that_is_frozen_is_named_and_nobody_before() -> None:
    with workers() as (heartbeat, processes):
        assert eventually(lambda: str(heartbeat.loss()) == "")
        processes[1].send_signal(signal.SIGSTOP)
        assert eventually(
            lambda: str(heartbeat.loss()).startswith("workerpool0-0 hasn't heard from workerpool1-1 for ")
        )
        assert heartbeat.loss().event == {"lost_peer": "workerpool1-1"}


def test_where_all_others_fell_silent_together_the_fault_may_be_here() -> None:
    with workers() as (heartbeat, processes):
        for process in processes:
            process.send_signal(signal.SIGSTOP)
        assert eventually(lambda: str(heartbeat.loss()).endswith(" s; this replica might be cut off from the network"))
        assert heartbeat.loss().event == {"lost_peer": ""}


def test_who_has_finished_waits_for_those_that_run_and_not_for_one_that_is_frozen() -> None:
    with workers() as (heartbeat, processes), ThreadPoolExecutor() as waiting:
        processes[0].send_signal(signal.SIGSTOP)
        assert eventually(lambda: bool(wait([waiting.submit(heartbeat.finish)], 0.5).not_done))
        assert processes[1].stdin
        processes[1].stdin.close()
        assert processes[1].wait(DEADLINE) == 0


HANGS = "decode (trainer/data.py:71): no progress for 41 s, since step 30"


def news(step: int, name: str) -> str:
    return f"{name}\n{step:{stuck.WIDTH}}{HANGS}"


CHIEF, FIRST, SECOND = NAMES
STUCK = f"{FIRST} is stuck in {HANGS}. The other replicas wait for this replica, whose log contains its Python stack"


@pytest.mark.parametrize(
    ("messages", "told"),
    [
        ([news(30, FIRST), f"{SECOND}\nlost"], STUCK),
        ([news(30, FIRST), news(31, SECOND)], STUCK),
        ([news(30, FIRST), news(9, "workerpool9-9")], STUCK),
        ([news(30, FIRST), news(30, SECOND)], ""),
        ([f"{FIRST}\nlost", f"{SECOND}\nlost"], ""),
        ([f"{FIRST}\nlost", SECOND], ""),
    ],
)
def test_only_one_that_hangs_after_fewer_steps_than_every_other_is_named(messages: list[str], told: str) -> None:
    nodes = tuple(map(Node, NAMES, free_addresses(3)))
    heartbeat, stop = Heartbeat(Cluster(nodes, CHIEF)), threading.Event()

    def send() -> None:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as peers:
            while not stop.wait(0.2):
                for message in messages:
                    peers.sendto(message.encode(), (nodes[0].host, nodes[0].port))

    with ThreadPoolExecutor(1) as sender:
        sender.submit(send)
        try:
            assert eventually(lambda: len(heartbeat.heard) == sum(message.startswith(NAMES) for message in messages))
            loss = heartbeat.loss()
            assert str(loss) == told
            assert loss.event == ({"stuck": FIRST, "place": HANGS} if told else {})
        finally:
            stop.set()


def test_a_replica_whose_port_is_taken_is_neither_heard_nor_stopped() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as taken:
        taken.bind(("127.0.0.1", 0))
        own, other = (f"127.0.0.1:{port}" for port in (taken.getsockname()[1], 1))
        assert Heartbeat(Cluster((Node(NAMES[0], own), Node(NAMES[1], other)), NAMES[0])).loss().event == {}

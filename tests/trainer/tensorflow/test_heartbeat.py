"""Who notices what, when a chief, a worker or a parameter server is lost: real connections, no TensorFlow."""

import queue
import re
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace

import pytest

from tests.training import eventually
from trainer.cluster import rollcall
from trainer.cluster.spec import Cluster, Node
from trainer.parallel.parameter_server import heartbeat
from trainer.parallel.parameter_server.heartbeat import Heartbeats
from trainer.vertex.errors import PeerError
from vertex_launch.local.running.hosts import free_addresses

pytestmark = pytest.mark.proof
TIMEOUT = 6.0  # seconds; six beats
DEADLINE = 300.0  # seconds; a guard against hanging


class Team:
    """A chief's heartbeats and what it was told; the others answer in threads."""

    def __init__(self, stack: ExitStack, workers: int, servers: int, timeout: float = TIMEOUT) -> None:
        chief, *others = free_addresses(1 + workers + servers)
        names = [*(f"workerpool1-{i}" for i in range(workers)), *(f"workerpool2-{i}" for i in range(servers))]
        nodes = [Node("workerpool0-0", chief), *map(Node, names, others)]
        self.cluster = Cluster(tuple(nodes[: workers + 1]), "workerpool0-0", tuple(nodes[workers + 1 :]))
        self.told: queue.SimpleQueue[tuple[str, str]] = queue.SimpleQueue()
        self.threads = stack.enter_context(ThreadPoolExecutor(8))
        self.lines = Heartbeats(self.cluster, timeout, lambda why, lost: self.told.put((why, lost)))

    def hold(self, name: str, told: threading.Event | None = None) -> "Future[None]":
        own = replace(self.cluster, name=name)
        return self.threads.submit(heartbeat.answer, own, TIMEOUT, told or threading.Event())

    def hold_silently(self, name: str) -> socket.socket:
        """Like a replica that is frozen, or, when the connection is closed, killed."""
        connection = socket.create_connection((self.cluster.chief.host, self.cluster.chief.port), timeout=5)
        connection.sendall(f'{{"name": "{name}", "heartbeat": true}}\n'.encode())
        return connection


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def test_everybody_ends_well_when_the_chief_has_finished(stack: ExitStack) -> None:
    team = Team(stack, workers=2, servers=1)
    held = [team.hold(name) for name in ("workerpool1-0", "workerpool1-1", "workerpool2-0")]
    with team.lines as lines:
        lines.wait_for_all()
        time.sleep(2 * TIMEOUT)  # longer than anybody may be silent
    assert [one.result(timeout=DEADLINE) for one in held] == [None] * 3
    assert team.told.empty()


def test_who_passed_the_roll_call_and_does_not_serve_is_named(stack: ExitStack) -> None:
    team = Team(stack, workers=1, servers=2)
    team.hold_silently("workerpool2-1")
    with pytest.raises(PeerError, match="workerpool1-0, workerpool2-0 passed the roll call, but didn't start"):
        team.lines.wait_for_all()


def test_a_lost_parameter_server_is_named_at_once(stack: ExitStack) -> None:
    team = Team(stack, workers=1, servers=1)
    server, _worker = team.hold_silently("workerpool2-0"), team.hold("workerpool1-0")
    team.lines.wait_for_all()
    server.close()
    why, lost = team.told.get(timeout=DEADLINE)
    assert why == "workerpool2-0, a parameter server, is gone, and its variables are lost"
    assert lost == "workerpool2-0"
    team.lines.__exit__(None, None, None)


def test_a_frozen_parameter_server_is_named_in_time(stack: ExitStack) -> None:
    team = Team(stack, workers=1, servers=1)
    with team.hold_silently("workerpool2-0"):
        team.hold("workerpool1-0")
        assert "workerpool2-0, a parameter server, has been silent" in team.told.get(timeout=DEADLINE)[0]
        team.lines.__exit__(None, None, None)


@pytest.mark.parametrize(
    ("workers", "who"), [(2, "workerpool2-0, a parameter server"), (1, "workerpool1-0, the only connected worker")]
)
def test_the_run_ends_with_the_first_that_it_needs_and_that_is_told_to_end(
    workers: int, who: str, stack: ExitStack, capsys: pytest.CaptureFixture[str]
) -> None:
    team, told = Team(stack, workers=workers, servers=1), [threading.Event() for _ in range(workers + 1)]
    names = [node.name for node in (*team.cluster.nodes[1:], *team.cluster.servers)]
    held = [team.hold(name, one) for name, one in zip(names, told, strict=True)]
    with team.lines as lines:
        lines.wait_for_all()
        for one in (told[0], told[-1]):
            one.set()
            assert eventually(lambda: workers == 2 or bool(lines.told))  # of two, one can be done without
        assert eventually(lambda: bool(lines.told))
    assert [one.result(timeout=DEADLINE) for one in held] == [None] * len(held)
    assert lines.told == who.partition(",")[0]
    assert capsys.readouterr().out.count(f"{who}, was asked to stop, so the run stops") == 1


def test_a_lost_worker_is_no_end_and_passes_its_roll_call_when_it_comes_back(
    stack: ExitStack, capsys: pytest.CaptureFixture[str]
) -> None:
    team = Team(stack, workers=2, servers=1)
    worker, held = team.hold_silently("workerpool1-0"), [team.hold("workerpool2-0"), team.hold("workerpool1-1")]
    with team.lines as lines:
        lines.wait_for_all()
        worker.close()
        time.sleep(TIMEOUT + 1)
        rollcall.call(replace(team.cluster, name="workerpool1-0"), TIMEOUT, team.cluster.servers)
        held.append(team.hold("workerpool1-0"))
        assert eventually(lambda: "workerpool1-0 has returned" in capsys.readouterr().out)
    assert [one.result(timeout=DEADLINE) for one in held] == [None] * 3
    assert team.told.empty()


def test_a_parameter_server_that_comes_back_has_to_wait_for_the_next_chief(stack: ExitStack) -> None:
    team = Team(stack, workers=1, servers=1)
    held = [team.hold("workerpool1-0"), team.hold("workerpool2-0")]
    with team.lines as lines:
        lines.wait_for_all()
        with pytest.raises(PeerError, match=r"doesn't respond|is absent"):
            rollcall.call(replace(team.cluster, name="workerpool2-0"), TIMEOUT, team.cluster.servers)
    assert [one.result(timeout=DEADLINE) for one in held] == [None] * 2


def test_the_run_ends_when_no_worker_is_left(stack: ExitStack) -> None:
    team = Team(stack, workers=1, servers=1)
    worker, _server = team.hold_silently("workerpool1-0"), team.hold("workerpool2-0")
    team.lines.wait_for_all()
    worker.close()
    with team.lines.patience():
        assert re.fullmatch(
            r"no worker finished a step within \d+ s; workerpool1-0 is gone", team.told.get(timeout=DEADLINE)[0]
        )
    team.lines.__exit__(None, None, None)


def test_who_is_missing_is_named_when_another_one_is_back_and_gets_no_work(
    stack: ExitStack, capsys: pytest.CaptureFixture[str]
) -> None:
    """TensorFlow takes nobody in again while another worker is lost."""
    team = Team(stack, workers=2, servers=1, timeout=2 * TIMEOUT)
    workers = [team.hold_silently(f"workerpool1-{index}") for index in range(2)]
    held = [team.hold("workerpool2-0")]
    with team.lines as lines:
        lines.wait_for_all()
        for worker in workers:
            worker.close()
        assert eventually(lambda: "no worker is left, so the run stops unless" in capsys.readouterr().out)
        held.append(team.hold("workerpool1-0"))
        assert eventually(lambda: "workerpool1-0 has returned, but workerpool1-1 is gone" in capsys.readouterr().out)
        with lines.patience():
            told, _ = team.told.get(timeout=DEADLINE)
    assert "no worker finished a step within" in told
    assert "; workerpool1-1 is gone" in told
    assert [one.result(timeout=DEADLINE) for one in held] == [None] * 2


def test_no_loss_matters_once_the_chief_needs_nobody(stack: ExitStack, capsys: pytest.CaptureFixture[str]) -> None:
    team = Team(stack, workers=2, servers=1)
    lost = [team.hold_silently(name) for name in ("workerpool1-0", "workerpool2-0")]
    held = team.hold("workerpool1-1")
    with team.lines as lines:
        lines.wait_for_all()
        lines.need_nobody()
        for one in lost:
            one.close()
        time.sleep(2 * TIMEOUT)  # longer than anybody may be silent
    assert held.result(timeout=DEADLINE) is None  # it stayed to the end
    assert team.told.empty()
    assert "is gone" not in capsys.readouterr().out


def test_a_step_that_never_comes_back_ends_the_run(stack: ExitStack) -> None:
    team = Team(stack, workers=1, servers=1)
    held = [team.hold("workerpool1-0"), team.hold("workerpool2-0")]
    with team.lines as lines:
        lines.wait_for_all()
        with lines.patience():
            told, _ = team.told.get(timeout=DEADLINE)
    assert "no worker finished a step within" in told
    assert "; all workers are connected" in told
    assert [one.result(timeout=DEADLINE) for one in held] == [None] * 2


def test_a_chief_that_ends_early_or_is_frozen_is_an_error_of_all_others() -> None:
    for says, words in ((b"", "exited before the training finished"), (None, "has been silent")):
        with socket.create_server(("127.0.0.1", 0)) as chief:
            address = f"127.0.0.1:{chief.getsockname()[1]}"
            cluster = Cluster((Node("workerpool0-0", address), Node("workerpool1-0", "h:1")), "workerpool1-0")
            with ThreadPoolExecutor(1) as pool:
                held = pool.submit(heartbeat.answer, cluster, TIMEOUT, threading.Event())
                connection, _ = chief.accept()
                connection.recv(100)
                if says is not None:
                    connection.close()
                with pytest.raises(PeerError, match=f"workerpool0-0, the chief, {words}"):
                    held.result(timeout=DEADLINE)
                connection.close()


def test_strangers_harm_nobody_and_no_thread_is_left(stack: ExitStack) -> None:
    before = threading.active_count()
    team = Team(stack, workers=1, servers=1)
    for line in (
        b"GET / HTTP/1.1\r\n\r\n",
        b"\xff\n",
        b"[]\n",
        b'{"name": "workerpool9-0", "heartbeat": true}\n',
        b"{",
    ):
        with socket.create_connection((team.cluster.chief.host, team.cluster.chief.port), timeout=5) as stranger:
            stranger.sendall(line)
    held = [team.hold("workerpool1-0"), team.hold("workerpool2-0")]
    with team.lines as lines:
        lines.wait_for_all()
    assert [one.result(timeout=DEADLINE) for one in held] == [None] * 2
    team.threads.shutdown()
    assert eventually(lambda: threading.active_count() <= before)
    assert team.told.empty()

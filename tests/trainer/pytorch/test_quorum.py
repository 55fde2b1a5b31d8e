"""The chief's server and its clients agree on who trains, whoever is lost, frozen, or late."""

import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from datetime import timedelta

import pytest
from torch.distributed import DistNetworkError, TCPStore  # type: ignore[attr-defined]

from tests.training import PROJECT
from trainer.cluster import quorum, quorum_server
from trainer.cluster.quorum import Client, Generation, Limits, OverError
from trainer.cluster.quorum_server import Server
from trainer.cluster.rollcall import NO_FACTS, Facts
from trainer.cluster.spec import Cluster, Node
from trainer.vertex.errors import PeerError, TrainerError
from vertex_launch.local.running.hosts import free_addresses

SECONDS = 60.0  # nobody waits for it
MOMENT = 0.7  # seconds, in which the server looks at all of them once
NAMES = ("workerpool0-0", "workerpool1-0", "workerpool1-1")
PATIENT = Limits(least=1, patience=SECONDS, timeout=SECONDS, silence=SECONDS)
HASTY = replace(PATIENT, patience=0.0)
STRICT = replace(PATIENT, silence=3.0)  # many times the interval between two signs of life

IN_A_PROCESS = f"""
import sys, threading
from trainer.cluster import quorum
from trainer.cluster.quorum import Client, Limits
from trainer.cluster.quorum_server import Server
from trainer.cluster.spec import Cluster, Node

cluster = Cluster(tuple(Node(*pair.split("=")) for pair in sys.argv[2:]))
limits = Limits(1, {SECONDS}, {SECONDS}, {SECONDS})
if sys.argv[1] == "server":
    Server(cluster, 1, limits, {{}})
else:
    Client(cluster, int(sys.argv[1]), limits, {{}}, lambda: None).ask(-1, broken=False)
threading.Event().wait()
"""


@dataclass
class Group:
    """A chief's address, and the clients of this test, by rank; each asks in its own thread."""

    cluster: Cluster
    stack: ExitStack
    clients: dict[int, Client] = field(default_factory=dict)

    def serve(self, limits: Limits = PATIENT, each: int = 1, facts: Facts = NO_FACTS) -> None:
        self.server = Server(self.cluster, each, limits, facts)

    def join(self, rank: int, limits: Limits = PATIENT, facts: Facts = NO_FACTS) -> "Future[Generation]":
        self.clients[rank] = Client(self.cluster, rank, limits, facts, lambda: None)
        return self.ask(rank, -1)

    def ask(self, rank: int, step: int, *, broken: bool = False) -> "Future[Generation]":
        future = Future[Generation]()

        def call() -> None:
            try:
                future.set_result(self.clients[rank].ask(step, broken=broken))
            except Exception as error:
                future.set_exception(error)

        threading.Thread(target=call, daemon=True).start()  # a test that fails doesn't wait for the answer
        return future

    def wait_for(self, *ranks: int) -> None:
        """Wait until the server has the questions of these processes."""
        deadline = time.monotonic() + SECONDS
        while not all(rank in (members := self.server._members) and members[rank].question for rank in ranks):
            assert time.monotonic() < deadline, members
            time.sleep(0.01)

    def start(self, who: str) -> "subprocess.Popen[bytes]":
        """Start a server, or the client of a rank, in its own process."""
        nodes = [f"{node.name}={node.address}" for node in self.cluster.nodes]
        process = subprocess.Popen([sys.executable, "-c", IN_A_PROCESS, who, *nodes], cwd=PROJECT)
        self.stack.callback(process.wait)
        self.stack.callback(process.kill)
        return process


@pytest.fixture
def make() -> Iterator[Callable[[int], Group]]:
    """Return a function that makes a group of this many replicas."""
    with ExitStack() as stack:
        yield lambda count: Group(Cluster(tuple(map(Node, NAMES, free_addresses(count)))), stack)


def same(*answers: "Future[Generation]") -> Generation:
    """Return the generation that all have received."""
    first, *others = (answer.result(SECONDS) for answer in answers)
    assert all(other == first for other in others)
    return first


def test_all_wait_for_all_at_the_start(make: Callable[[int], Group]) -> None:
    group = make(3)
    group.serve()
    early = [group.join(0), group.join(2)]
    assert not wait(early, MOMENT).done
    generation = same(*early, group.join(1))
    assert (generation.ranks, generation.steps, generation.source) == ((0, 1, 2), {}, None)


def test_a_killed_process_ends_the_wait_of_the_others_which_go_on_without_it(make: Callable[[int], Group]) -> None:
    group = make(3)
    group.serve()
    process = group.start("1")
    first = same(group.join(0), group.join(2))
    waiting = group.ask(0, 5)
    process.kill()
    assert group.clients[2].lost.wait(SECONDS)
    after = same(waiting, group.ask(2, 5, broken=True))
    assert (after.ranks, after.steps) == ((0, 2), {0: 5, 2: 5})
    assert (after.number, after.port) != (first.number, first.port)
    assert not group.clients[2].lost.is_set()


def test_a_process_that_joins_is_in_the_generation_that_all_others_receive_at_their_next_question(
    make: Callable[[int], Group],
) -> None:
    group = make(3)
    group.serve(HASTY)
    first = same(group.join(0, HASTY))
    joins = [group.join(1, HASTY), group.join(2, HASTY)]
    group.wait_for(1, 2)
    assert not wait(joins, MOMENT).done
    together = same(group.ask(0, first.ask), *joins)
    assert (together.ranks, together.steps, together.source) == ((0, 1, 2), {0: first.ask}, 0)
    assert together.number != first.number
    unchanged = same(*(group.ask(rank, together.ask) for rank in together.ranks))
    assert (unchanged.number, unchanged.port) == (together.number, together.port)
    assert unchanged.ask > together.ask


def test_a_process_that_does_not_ask_is_put_out_after_a_time(make: Callable[[int], Group]) -> None:
    group = make(3)
    group.serve(STRICT)
    same(*(group.join(rank) for rank in range(3)))
    after = same(group.ask(0, 1), group.ask(2, 1))
    assert after.ranks == (0, 2)
    assert group.clients[1].lost.wait(SECONDS)
    back = group.ask(1, 1, broken=True)
    group.wait_for(1)
    assert not back.done()
    assert same(back, group.ask(0, 2), group.ask(2, 2)).ranks == (0, 1, 2)


@pytest.mark.skipif(sys.platform == "win32", reason="stops a process")
def test_a_frozen_process_is_noticed_though_nobody_asks(make: Callable[[int], Group]) -> None:
    """As where all others wait in a collective that has no timeout."""
    group = make(3)
    group.serve(STRICT)
    process = group.start("1")
    same(group.join(0), group.join(2))
    process.send_signal(signal.SIGSTOP)
    assert all(group.clients[rank].lost.wait(SECONDS) for rank in (0, 2))
    assert same(group.ask(0, 7, broken=True), group.ask(2, 7, broken=True)).ranks == (0, 2)


def test_a_process_that_is_lost_while_the_others_wait_for_its_address_ends_their_wait(
    make: Callable[[int], Group],
) -> None:
    group = make(3)
    group.serve()
    process = group.start("1")
    generation = same(group.join(0), group.join(2))
    store = TCPStore(group.cluster.chief.host, generation.port, is_master=False)
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(store.wait, ["the address"], timedelta(seconds=SECONDS))
        process.kill()
        with pytest.raises(DistNetworkError):
            waiting.result(SECONDS)


def test_a_process_that_has_finished_is_not_lost(make: Callable[[int], Group]) -> None:
    group = make(2)
    group.serve()
    same(group.join(0), group.join(1))
    group.clients[1].leave()
    assert not group.clients[0].lost.wait(MOMENT)
    assert same(group.ask(0, 9)).ranks == (0,)


def test_too_few_replicas_are_counted_while_they_wait_and_after_the_timeout(
    make: Callable[[int], Group], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(quorum_server, "TELL_SECONDS", 0.0)
    group, limits = make(3), Limits(least=2, patience=0.6, timeout=1.0, silence=SECONDS)
    group.serve(limits)
    with pytest.raises(PeerError) as error:
        group.join(0, limits).result(SECONDS)
    present = "1 of 3 replicas are present"
    assert str(error.value) == f"{present}, but --min-replicas is 2; waited 1 s (--quorum-timeout)"
    told = [json.loads(line)["message"] for line in capsys.readouterr().out.splitlines() if present in line]
    assert told == [
        f"{present}; waiting for 3 replicas for up to 1 s",
        f"{present}; waiting for 2 replicas for up to 2 s",
    ]


def test_a_chief_that_is_absent_is_named_while_others_wait_for_it_and_after_the_timeout(
    make: Callable[[int], Group], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(quorum, "TELL_SECONDS", 0.0)
    group = make(2)
    began = time.monotonic()
    with pytest.raises(PeerError, match=r"workerpool0-0, the chief, isn't reachable at .*; waited \d+ s"):
        group.join(1, replace(HASTY, timeout=1.2)).result(SECONDS)
    assert time.monotonic() - began >= 1.2
    assert capsys.readouterr().out.count("waiting for it for up to 1 s") == 1


def test_a_process_does_not_wait_for_a_chief_that_has_finished(make: Callable[[int], Group]) -> None:
    group = make(2)
    client = Client(group.cluster, 1, PATIENT, {}, lambda: None, is_over=lambda: True)
    with pytest.raises(OverError):
        client.ask(-1, broken=False)


def test_a_chief_that_restarts_finds_the_others_which_start_another_generation(make: Callable[[int], Group]) -> None:
    """Also the one that was asking when the chief was killed, and so doesn't know that it has lost a peer."""
    group = make(3)
    chief = group.start("server")
    first = same(*(group.join(rank) for rank in range(3)))
    asking = group.ask(1, 4)
    chief.kill()
    assert group.clients[2].lost.wait(SECONDS)
    group.start("server")
    again = same(asking, group.ask(2, 4, broken=True), group.join(0))
    assert (again.ranks, again.source) == ((0, 1, 2), 1)
    assert again.number != first.number


def test_flags_that_differ_are_refused_by_name(make: Callable[[int], Group]) -> None:
    group = make(2)
    group.serve(facts={"--seed": "0", "--steps": "9"})
    with pytest.raises(TrainerError, match=r"^--seed is 1 on workerpool1-0, but 0 on workerpool0-0; use the same"):
        group.join(1, facts={"--seed": "1", "--steps": "9"}).result(SECONDS)


def test_a_replica_counts_only_with_all_its_processes(make: Callable[[int], Group]) -> None:
    group = make(2)
    group.serve(HASTY, each=2)
    half = group.join(2, HASTY)
    alone = same(group.join(0, HASTY), group.join(1, HASTY))
    assert alone.ranks == (0, 1)
    joins = [half, group.join(3, HASTY)]
    group.wait_for(2, 3)
    assert not wait(joins, MOMENT).done
    assert same(*joins, *(group.ask(rank, alone.ask) for rank in (0, 1))).ranks == (0, 1, 2, 3)


def test_the_state_comes_from_the_process_with_the_most_finished_steps(make: Callable[[int], Group]) -> None:
    group = make(3)
    group.serve()
    same(*(group.join(rank) for rank in range(3)))
    generation = same(*(group.ask(rank, step, broken=True) for rank, step in enumerate((7, 8, -1))))
    assert (generation.steps, generation.source) == ({0: 7, 1: 8}, 1)


def test_processes_whose_peer_was_lost_start_another_generation_even_if_it_returns_at_once(
    make: Callable[[int], Group],
) -> None:
    group = make(2)
    group.serve(replace(STRICT, least=2))
    before = same(group.join(0), group.join(1))
    asking = group.ask(0, before.ask)
    assert group.clients[1].lost.wait(SECONDS)  # put out because it doesn't ask
    after = same(asking, group.ask(1, before.ask))
    assert (after.ranks, after.number > before.number) == ((0, 1), True)

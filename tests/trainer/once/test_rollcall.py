import json
import socket
import socketserver
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from trainer.cluster import rollcall
from trainer.cluster.rollcall import RollcallError
from trainer.cluster.spec import Cluster, ClusterError, Node
from vertex_launch.local.running.hosts import free_addresses

TIMEOUT = 2.0  # seconds, where nobody is heard: that is known after it
SOON = 6.0  # seconds, where others are heard, who are threads of a process that the machine may let wait
PATIENCE = 600.0  # seconds, where all come: nobody waits for it
DEADLINE = 300.0  # seconds; who takes longer has waited for the timeout


def clusters(count: int, addresses: list[str] | None = None) -> list[Cluster]:
    """The views of `count` replicas, chief first, at loopback addresses where nobody listens."""
    chief, *workers = addresses or free_addresses(count)
    nodes = (Node("workerpool0-0", chief), *(Node(f"workerpool1-{i}", a) for i, a in enumerate(workers)))
    return [Cluster(nodes, node.name) for node in nodes]


def names(cluster: Cluster) -> list[str]:
    return [node.name for node in cluster.nodes]


def call(cluster: Cluster, timeout: float = TIMEOUT, delay: float = 0, servers: tuple[Node, ...] = ()) -> str:
    """What one replica learns: "" if all are here."""
    time.sleep(delay)
    try:
        rollcall.call(cluster, timeout, servers)
    except RollcallError as error:
        return str(error)
    return ""


def call_all(replicas: Sequence[Cluster], timeout: float = TIMEOUT, delays: Sequence[float] = ()) -> list[str]:
    """What each of these replicas learns, who come after as many seconds."""
    with ThreadPoolExecutor(len(replicas)) as pool:
        pairs = zip(replicas, delays or [0.0] * len(replicas), strict=True)
        calls = [pool.submit(call, replica, timeout, delay) for replica, delay in pairs]
        return [one.result(timeout=DEADLINE) for one in calls]


def bind(address: str) -> None:
    """Bind as the pickiest framework would, without SO_REUSEADDR; raises OSError if the address is taken."""
    host, _, port = address.rpartition(":")
    with socket.socket() as server:
        server.bind((host, int(port)))
        server.listen()


def test_when_all_are_here_all_go_on_at_once() -> None:
    assert call_all(clusters(4), PATIENCE) == [""] * 4


@pytest.mark.parametrize("turn", range(20))
def test_who_has_the_answer_does_not_meet_the_roll_call_again_at_the_chiefs_address(turn: int) -> None:
    chief, worker = clusters(2)
    with ThreadPoolExecutor(1) as pool:
        leads = pool.submit(call, chief, PATIENCE)
        assert call(worker, PATIENCE) == ""
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((chief.chief.host, chief.chief.port), timeout=5)
        assert leads.result(timeout=DEADLINE) == ""


def refused(told: list[dict[str, str]]) -> list[BaseException | None]:
    """The errors of replicas that were told these facts, of each one."""
    with ThreadPoolExecutor(len(told)) as pool:
        pairs = zip(clusters(len(told)), told, strict=True)
        calls = [pool.submit(rollcall.call, replica, PATIENCE, (), facts) for replica, facts in pairs]
        return [one.exception(timeout=DEADLINE) for one in calls]


def test_whoever_was_told_something_else_is_named_by_all_with_both_values() -> None:
    errors = refused(
        [{"--seed": "0", "--steps": "9"}, {"--seed": "7", "--steps": "9"}, {"--seed": "7", "--steps": "8"}]
    )
    assert {*map(str, errors)} == {
        "rollcall: --seed is 7 on workerpool1-0 and workerpool1-1, but 0 on workerpool0-0; --steps is 8 on"
        " workerpool1-1, but 9 on workerpool0-0; use the same value on all replicas, or continue with --anyway"
    }
    assert not any(isinstance(error, RollcallError) for error in errors)  # which another start might cure


def test_of_another_strategy_whose_flags_are_others_the_strategy_is_named_alone() -> None:
    errors = refused([{"--strategy": "ddp", "--bucket-cap-mb": "64"}, {"--strategy": "fsdp", "--degree": "None"}])
    assert {*map(str, errors)} == {
        "rollcall: --strategy is fsdp on workerpool1-0, but ddp on workerpool0-0; use the same value on all"
        " replicas, or continue with --anyway"
    }


def test_one_machine_waits_for_nobody() -> None:
    assert call(Cluster(), timeout=0) == ""


@pytest.mark.parametrize("delays", [(0.0, 0.6, 0.0), (0.6, 0.0, 0.0), (0.2, 0.6, 0.4)])
def test_who_comes_late_is_waited_for(delays: tuple[float, ...]) -> None:
    assert call_all(clusters(3), PATIENCE, delays) == ["", "", ""]


def test_everybody_learns_who_is_absent_within_the_timeout() -> None:
    chief, worker, _, other = clusters(4)
    told = call_all((chief, worker, other), SOON, delays=(0, 0, 0.2))
    assert len(told) == 3
    assert all(text.startswith("rollcall: workerpool1-1 is absent; 3 of 4 are present") for text in told)


def test_several_absent_replicas_are_named_in_order() -> None:
    chief, _, worker, _ = clusters(4)
    for text in call_all((chief, worker), SOON):
        assert text.startswith("rollcall: workerpool1-0, workerpool1-2 are absent; 2 of 4 are present")


def test_the_absent_are_named_in_the_event_of_everybody() -> None:
    chief, worker, _ = clusters(3)
    with ThreadPoolExecutor(2) as pool:
        calls = [pool.submit(rollcall.call, one, SOON) for one in (chief, worker)]
        errors = [call.exception(timeout=DEADLINE) for call in calls]
    assert [error.event for error in errors if isinstance(error, RollcallError)] == [{"absent": ["workerpool1-1"]}] * 2


def test_an_absent_chief_is_named_with_its_address() -> None:
    _, *workers = clusters(3)
    told = call_all(workers)
    assert len(told) == 2
    assert all(f"workerpool0-0, the chief, isn't reachable at {workers[0].chief.address}" in text for text in told)


def test_a_chief_that_hangs_up_without_an_answer_is_told_apart_from_an_absent_one() -> None:
    _, worker = clusters(2)
    with socketserver.TCPServer((worker.chief.host, worker.chief.port), socketserver.BaseRequestHandler) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        assert "workerpool0-0, the chief, is present but doesn't respond" in call(worker)
        server.shutdown()


def test_a_chief_whose_own_name_leads_nowhere_still_listens() -> None:
    nodes = (Node("workerpool0-0", "no-such-host.invalid:0"), Node("workerpool1-0", "localhost:2222"))
    assert "workerpool1-0 is absent" in call(Cluster(nodes))


def test_a_chief_whose_address_is_taken_says_so() -> None:
    chief, _ = clusters(2)
    with socket.create_server((chief.chief.host, chief.chief.port)):
        who = f"{chief.chief.address}, the address of workerpool0-0"
        assert f"can't listen on {who}: Address already in use" in call(chief)


def test_two_jobs_that_are_mixed_are_told_so_at_once() -> None:
    chief, *_ = clusters(3)
    *_, stray = clusters(3, [chief.chief.address, "127.0.0.1:1", "127.0.0.1:2"])
    told = call_all((chief, stray), PATIENCE)
    assert all(
        "workerpool1-1 describes a different cluster than workerpool0-0; check whether replicas of two jobs use" in t
        for t in told
    )


def test_who_does_not_train_is_not_expected_and_told_so() -> None:
    reducer = Cluster(name="workerpool2-0", servers=(Node("workerpool2-0", "localhost:1"),))
    with pytest.raises(ClusterError, match="workerpool2-0: only pools 0 and 1 train"):
        rollcall.call(reducer, TIMEOUT)


def test_servers_that_take_part_are_waited_for_and_named_like_the_others() -> None:
    chief, worker = clusters(2)
    servers = tuple(Node(f"workerpool2-{i}", address) for i, address in enumerate(free_addresses(2)))
    chief, worker, server = (replace(chief, name=name, servers=servers) for name in (*names(chief), servers[0].name))
    with ThreadPoolExecutor(3) as pool:
        told = [*pool.map(lambda one: call(one, SOON, servers=servers), (chief, worker, server))]
    assert all(text.startswith("rollcall: workerpool2-1 is absent; 3 of 4 are present") for text in told)


RUBBISH: dict[str, Callable[[socket.socket], object]] = {
    "silence": lambda _: None,
    "hangs up": lambda connection: connection.close(),
    "HTTP": lambda connection: connection.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"),
    "bytes": lambda connection: connection.sendall(bytes(range(256)) * 500),
    "half a line": lambda connection: connection.sendall(b'{"name": "workerpool1-0", '),
    "another object": lambda connection: connection.sendall(b"{}\n"),
    "a list": lambda connection: connection.sendall(b"[1, 2]\n"),
    "deep": lambda connection: connection.sendall(b"[" * 100_000 + b"\n"),
}


@pytest.mark.parametrize("speak", RUBBISH.values(), ids=RUBBISH)
def test_a_port_scanner_holds_nobody_up(speak: Callable[[socket.socket], object]) -> None:
    chief, worker = clusters(2)
    with ThreadPoolExecutor(2) as pool:
        leader = pool.submit(call, chief, PATIENCE)
        strangers = [connect(chief.chief.address) for _ in range(3)]
        for stranger in strangers:
            speak(stranger)
        assert pool.submit(call, worker, PATIENCE).result(timeout=DEADLINE) == ""
        assert leader.result(timeout=DEADLINE) == ""
        bind(chief.chief.address)  # even while the strangers stay
        for stranger in strangers:
            stranger.close()


def connect(address: str) -> socket.socket:
    """A connection, as soon as somebody listens."""
    host, _, port = address.rpartition(":")
    deadline = time.monotonic() + DEADLINE
    while True:
        try:
            return socket.create_connection((host, int(port)), timeout=DEADLINE)
        except OSError:
            assert time.monotonic() < deadline
            time.sleep(0.01)


def test_a_stranger_does_not_make_an_absent_worker_present() -> None:
    chief, worker, _ = clusters(3)
    with ThreadPoolExecutor(2) as pool:
        calls = [pool.submit(call, cluster, SOON) for cluster in (chief, worker)]
        with connect(chief.chief.address) as stranger:
            stranger.sendall(json.dumps({"name": "", "nodes": []}).encode())
            told = [one.result(timeout=DEADLINE) for one in calls]
    assert all("workerpool1-1 is absent" in text for text in told)


@pytest.mark.parametrize("present", [3, 2])
def test_the_chiefs_address_is_free_right_after(present: int) -> None:
    everyone = clusters(3)
    call_all(everyone[:present], PATIENCE if present == 3 else SOON)
    bind(everyone[0].chief.address)


def test_many_replicas_are_counted_at_once() -> None:
    assert call_all(clusters(40), PATIENCE) == [""] * 40

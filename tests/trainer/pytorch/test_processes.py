"""Who is to blame for the end of a process: what it prints, and with which code its replica exits."""

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial

import pytest
import torch
import torch.distributed as dist

from tests.training import DEADLINE, PROJECT
from trainer.cluster import processes
from trainer.cluster.spec import Cluster, Node
from trainer.cluster.world import Mesh
from vertex_launch.local.running.hosts import free_addresses

PLACE = "[/__w/pytorch/pytorch/third_party/gloo/gloo/transport/tcp/"
CLOSED = "Connection closed by peer [127.0.0.1]:23462"
HINT = ". This is typically caused by a remote worker crashing. Check the logs of the remote worker"
REMOTE = "NCCL error in: NCCLUtils.cpp:77, remote process exited or there was a network error\nncclRemoteError: A call"


@pytest.mark.skipif(not shutil.which("ip"), reason="ip of iproute2 tells the way that Linux takes")
def test_gloo_takes_the_interface_that_leads_to_the_chief() -> None:
    shown = subprocess.run(["ip", "-o", "route", "get", "198.51.100.7"], capture_output=True, text=True, timeout=60)
    way = re.search(r" dev (\S+)", shown.stdout)
    assert processes.interface_to(Node("workerpool0-0", "198.51.100.7:2222")) == (way[1] if way else "")
    assert processes.interface_to(Node("workerpool0-0", "no-such-host.invalid:2222")) == ""
    assert processes.interface_to(Node("workerpool0-0", "localhost:2222")).startswith("lo")


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (RuntimeError(f"{PLACE}pair.cc:553] {CLOSED}{HINT}"), CLOSED),
        (RuntimeError("Application timeout caused pair closure"), "Application timeout caused pair closure"),
        (RuntimeError(f"{PLACE}pair.cc:537] Read error [::1]:1: Connection reset by peer{HINT}"), "Read error [::1]:"),
        (RuntimeError(f"{PLACE}unbound_buffer.cc:78] Timed out waiting 4000ms for recv operation"), "Timed out"),
        (RuntimeError(f"Gloo connectFullMesh failed with {PLACE}pair.cc:144] no error"), "Gloo connectFullMesh failed"),
        (dist.DistStoreError("Timed out after 301 seconds waiting for clients. 1/2 joined."), "Timed out after 301"),
        (dist.DistNetworkError("failed to recv, got 0 bytes"), "failed to recv"),
        (dist.DistNetworkError(), "DistNetworkError"),
        (dist.DistBackendError(REMOTE), "NCCL error in: NCCLUtils.cpp:77, remote process exited"),
    ],
)
def test_a_lost_peer_is_told_in_one_line(error: Exception, words: str) -> None:
    told = processes.lost_peer(error)
    assert told.startswith(words)
    assert "\n" not in told
    assert "typically" not in told


@pytest.mark.parametrize(
    "error",
    [
        ValueError("Connection closed by peer"),
        KeyError("labels"),
        RuntimeError("mat1 and mat2 shapes cannot be multiplied (24x64 and 65x10)"),
        RuntimeError("Connection closed by peer, says the user's own data source"),
        RuntimeError("[enforce fail at alloc_cpu.cpp:117] DefaultCPUAllocator: can't allocate memory"),
        torch.OutOfMemoryError(f"{PLACE}pair.cc:553] {CLOSED}"),
        ConnectionResetError(104, "Connection reset by peer"),
        TimeoutError("timed out"),
        dist.DistBackendError("NCCL error\nncclInvalidUsage: Duplicate GPU detected : rank 1 and rank 0"),
    ],
)
def test_no_other_error_is_taken_for_a_lost_peer(error: Exception) -> None:
    assert processes.lost_peer(error) == ""


TIMEOUT = 300  # seconds; nobody waits for it


def fail() -> None:
    raise KeyError("labels")


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def leave() -> None:
    os._exit(0)


def leave_politely() -> None:
    sys.exit()


def meet_and_lose(mesh: Mesh, lose: Callable[[], None]) -> None:
    """What each process does: the last one is lost, the others wait for it."""
    with processes.join(mesh, TIMEOUT) as world:
        world.wait()
        if world.rank == world.size - 1:
            lose()
        world.wait()


def launch(lose: Callable[[], None], count: int) -> None:
    """A replica of so many processes."""
    mesh = Mesh({"replicate": count})
    processes.launch(Cluster(), mesh, partial(meet_and_lose, mesh, lose))


def run(lose: Callable[[], None], count: int = 2) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-c", PROGRAM.format(lose=lose.__name__, count=count)]
    return subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, timeout=DEADLINE)


PROGRAM = """
from trainer.cluster import supervisor
from trainer.vertex.log import exit_code

def main(*_):
    from tests import test_processes as test
    return exit_code(test.launch, test.{lose}, {count})

supervisor.run_to_end(main)
"""


@pytest.mark.proof
@pytest.mark.parametrize(("lose", "code"), [(fail, 1), (die, 137)])
def test_a_replica_whose_own_process_failed_does_not_blame_a_peer(lose: Callable[[], None], code: int) -> None:
    """The other process loses its peer, which is true; but the replica was the one."""
    ended = run(lose)
    assert ended.returncode == code, ended.stdout + ended.stderr
    assert ("KeyError: 'labels'" in ended.stderr) == (lose is fail)


@pytest.mark.proof
@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("lose", [leave, leave_politely])
def test_a_process_that_ends_with_0_before_the_training_does_fails_its_replica(
    lose: Callable[[], None], count: int
) -> None:
    ended = run(lose, count)
    assert ended.returncode == 1, ended.stdout + ended.stderr
    assert "workerpool0-0: a training process exited with code 0 before training was complete" in ended.stdout


SILENT_PEER = """
import os, time
import torch, torch.distributed as dist
from trainer.cluster import processes
from trainer.cluster.world import Mesh

with processes.join(Mesh({"replicate": 2, "shard": 2}), timeout=60.0) as world:
    world.wait()
    if world.rank:
        time.sleep(3000)  # torch itself would wait for half an hour
    try:
        dist.all_reduce(torch.zeros(1), group=world.along("shard").get_group())
    except RuntimeError:
        os._exit(75)
"""


@pytest.mark.proof
def test_a_silent_peer_is_waited_for_no_longer_along_one_dimension_than_among_all() -> None:
    host, port = free_addresses(1)[0].split(":")
    of_all = {"WORLD_SIZE": "4", "MASTER_ADDR": host, "MASTER_PORT": port, "OMP_NUM_THREADS": "1"}
    with ExitStack() as stack:
        peers = []
        for rank in range(4):
            environ = os.environ | of_all | {"RANK": str(rank), "GLOO_SOCKET_IFNAME": "lo"}
            command = [sys.executable, "-c", SILENT_PEER]
            peers.append(stack.enter_context(subprocess.Popen(command, cwd=PROJECT, env=environ)))
            stack.callback(peers[-1].kill)
        assert peers[0].wait(DEADLINE) == 75


FAILS_AT_FIRST = """
import os, sys
from torch.distributed import TCPStore
from trainer.cluster import processes
from trainer.cluster.world import Mesh

both, is_first = Mesh({"replicate": 2}), os.environ["RANK"] == "0"
if is_first:
    try:
        with processes.join(both, 1.0, TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)):
            pass
    except RuntimeError:
        print("failed")
store = TCPStore(sys.argv[1], int(sys.argv[2]), is_master=is_first, wait_for_workers=False)
with processes.join(both, 60.0, store) as world:
    world.wait()
"""


def test_a_process_that_could_not_join_joins_at_its_second_attempt() -> None:
    command = [sys.executable, "-c", FAILS_AT_FIRST, *free_addresses(1)[0].split(":")]
    environ = os.environ | {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    with ExitStack() as stack:
        both = []
        for rank in range(2):
            started = subprocess.Popen(command, cwd=PROJECT, env=environ | {"RANK": str(rank)}, stdout=subprocess.PIPE)
            both.append(stack.enter_context(started))
            stack.callback(started.kill)
        assert [one.communicate(timeout=DEADLINE)[0] for one in both] == [b"failed\n", b""]
        assert [one.returncode for one in both] == [0, 0]

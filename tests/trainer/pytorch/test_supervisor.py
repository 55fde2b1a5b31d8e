"""The process that waits for a replica's processes: what it prints, with which code it exits, and what it frees."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.training import DEADLINE, PROJECT
from trainer.cluster.spec import Cluster, Node
from trainer.cluster.supervisor import Work

PROGRAM = """
import os, pickle, sys, time
from functools import partial
from trainer.cluster import spec, supervisor
from trainer.vertex import lease, storage

def begin(count=1, work=None):
    supervisor.begin(supervisor.Work(spec.Cluster(), count, False, dict(os.environ), pickle.dumps(work)))

def main(argv, environ):
    {body}
    return 0

supervisor.run_to_end(main, {success})
"""
HOLDS = """with lease.held(storage.from_env(environ), is_chief=True):
        begin()
        os.kill(os.getpid(), 9)"""
WAITS = "begin(); print('up', flush=True); time.sleep(3000)"
FAILS, OWN = "workerpool0-0 failed (exit code 137)", 0
EARLY = "workerpool0-0: a training process exited with code 0 before training was complete"
TRAINER = "supervisor.FINISHED"


def start(folder: Path, body: str, success: int | str = TRAINER) -> "subprocess.Popen[str]":
    environ = os.environ | {"PYTHONPATH": str(PROJECT), "AIP_CHECKPOINT_DIR": str(folder / "checkpoints")}
    command = [sys.executable, "-c", PROGRAM.format(body=body, success=success)]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, env=environ, cwd=folder, stdout=pipe, stderr=pipe, text=True)


@pytest.mark.parametrize(
    ("body", "success", "code", "words"),
    [
        ("begin()", TRAINER, 0, ""),
        ("begin()", OWN, 0, ""),
        ("begin(2, partial(print, 'both'))", TRAINER, 0, "both"),
        ("begin(2, partial(sys.exit, 3)); time.sleep(3000)", TRAINER, 3, "process 1 of workerpool0-0 failed (exit"),
        ("begin(2, partial(sys.exit, 3)); time.sleep(3000)", OWN, 3, "process 1 of workerpool0-0 failed (exit"),
        ("begin(); sys.exit('no data')", TRAINER, 1, "workerpool0-0 failed (exit code 1)"),
        ("begin(); os.kill(os.getpid(), 9)", TRAINER, 137, FAILS),
        ("begin(); os._exit(0)", TRAINER, 1, EARLY),
        ("os._exit(0)", TRAINER, 1, EARLY),
        ("begin(2, partial(os._exit, 0)); time.sleep(3000)", TRAINER, 1, EARLY),
        # Before the roll call is over, only the process itself prints why it fails.
        ("sys.exit(2)", TRAINER, 2, ""),
        ("os.kill(os.getpid(), 9)", TRAINER, 137, ""),
        ("sys.exit(0)", TRAINER, 0, ""),
    ],
)
def test_the_process_that_fails_first_decides(
    tmp_path: Path, body: str, success: int | str, code: int, words: str
) -> None:
    printed, _ = (replica := start(tmp_path, body, success)).communicate(timeout=DEADLINE)
    assert replica.returncode == code
    assert words in printed
    assert bool(words) == bool(printed)


def test_the_lease_of_a_process_that_is_killed_is_free_at_once(tmp_path: Path) -> None:
    printed, errors = start(tmp_path, HOLDS).communicate(timeout=DEADLINE)
    assert FAILS in printed, errors
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("success", [TRAINER, OWN])
def test_a_replica_that_is_told_to_end_says_so(tmp_path: Path, success: int | str) -> None:
    with start(tmp_path, WAITS, success) as replica:
        assert replica.stdout
        assert replica.stdout.readline() == "up\n"
        replica.send_signal(signal.SIGTERM)
        printed, _ = replica.communicate(timeout=DEADLINE)
    assert replica.returncode == 143
    assert "workerpool0-0 was stopped by SIGTERM (exit code 143)" in printed


def test_no_process_outlives_the_supervisor(tmp_path: Path) -> None:
    with start(tmp_path, WAITS.replace("'up'", "os.getpid()")) as replica:
        assert replica.stdout
        assert replica.stdout.readline()
        replica.kill()
        assert replica.stdout.read() == ""  # comes to its end when no process has it open any more


def test_ranks_follow_the_order_of_the_replicas() -> None:
    nodes = tuple(Node(f"workerpool{index}-0", f"localhost:{index + 1}") for index in range(2))
    work = [Work(Cluster(nodes, node.name), 4, False, {}, b"") for node in nodes]
    ranks = [each.ranks(local) for each in work for local in range(each.count)]
    assert [one["RANK"] for one in ranks] == ["0", "1", "2", "3"]
    assert [one["LOCAL_RANK"] for one in ranks] == ["0", "1", "0", "1"]
    assert [one["GROUP_RANK"] for one in ranks] == ["0", "0", "1", "1"]
    assert {one["WORLD_SIZE"] + one["LOCAL_WORLD_SIZE"] + one["GROUP_WORLD_SIZE"] for one in ranks} == {"422"}

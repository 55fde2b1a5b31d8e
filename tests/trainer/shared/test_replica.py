"""The life of one replica's process: whom it waits for, and how it ends when it is told to."""

import json
import queue
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.marks import ONCE
from tests.training import DEADLINE, PROJECT, eventually, signal_trainer, started
from trainer.vertex.errors import PeerError
from vertex_launch.job.contract import Replica
from vertex_launch.local.running.ended import Ended
from vertex_launch.local.running.hosts import free_addresses
from vertex_launch.local.running.namespaces import isolation
from vertex_launch.local.running.process import Process

CHIEF, WORKERS = ("workerpool0", "workerpool1")
PATH = "/usr/bin:/bin"


# Imports take longer than the roll call, on a busy machine; both wait for a line before they begin.
TOGETHER = """
import os, sys
from trainer import task
from trainer.samples import shards
from trainer.vertex.log import exit_code
print("ready", flush=True)
sys.stdin.readline()
sys.exit(exit_code(task.run, sys.argv[1:], os.environ))
"""


def start(cluster: dict[str, list[str]], pool: str, index: int, folder: Path) -> "subprocess.Popen[str]":
    spec = {"cluster": cluster, "task": {"type": pool, "index": index}}
    return subprocess.Popen(
        [sys.executable, "-c", TOGETHER, "--rollcall-timeout", "10"],
        env={"PATH": PATH, "PYTHONPATH": str(PROJECT), "CLUSTER_SPEC": json.dumps(spec)},
        cwd=folder,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


@ONCE
def test_an_absent_worker_is_named_by_every_replica_within_the_timeout(tmp_path: Path) -> None:
    chief, *workers = free_addresses(3)
    cluster = {CHIEF: [chief], WORKERS: workers}
    present = [start(cluster, CHIEF, 0, tmp_path), start(cluster, WORKERS, 0, tmp_path)]
    try:
        for process in present:
            assert process.stdout
            assert "ready\n" in iter(process.stdout.readline, "")
        for process in present:
            assert process.stdin
            process.stdin.write("\n")
            process.stdin.flush()
        said = [process.communicate(timeout=DEADLINE)[0] for process in present]
    finally:
        for process in present:
            process.kill()
    assert [process.returncode for process in present] == [PeerError.exit_code] * 2
    assert all("workerpool1-1 is absent" in text and "Traceback" not in text for text in said)


@pytest.mark.proof
def test_a_training_that_is_process_1_saves_its_step_and_ends_soon_after_sigterm(tmp_path: Path) -> None:
    lines: list[str] = []
    ended: queue.SimpleQueue[Ended] = queue.SimpleQueue()
    env = {"PATH": PATH, "PYTHONPATH": str(PROJECT), "AIP_CHECKPOINT_DIR": str(tmp_path)}
    chief = Replica(0, 0, (sys.executable, "-m", "trainer.task", "--steps", "1000000", "--log-every", "1"), env)
    process = Process(
        chief, tmp_path, lambda _, line, __: lines.append(line), isolation(), lambda _, one: ended.put(one)
    )
    try:
        assert eventually(lambda: any("step 1/" in line for line in lines)), lines
        process.send_signal(signal.SIGTERM)
        assert ended.get(timeout=DEADLINE).code == 143
        assert any(
            "because this replica was asked to stop; after a restart, training resumes from this step" in line
            for line in lines
        )
    finally:
        process.close()


@pytest.mark.proof
def test_a_worker_that_trains_with_others_ends_soon_after_sigterm(tmp_path: Path) -> None:
    with started(tmp_path, 2, "--steps", "1000000") as (process, show):
        assert eventually(lambda: "step 2/" in show.read_text()), show.read_text()
        assert signal_trainer(tmp_path, "workerpool1-0", signal.SIGTERM)
        assert process.wait(DEADLINE) == 1
        assert "Job failed: workerpool1-0 was killed by SIGTERM (exit code 143)" in show.read_text()

"""One replica's command, as Vertex starts it."""

import json
import queue
import subprocess
import sys
from pathlib import Path

import pytest

from tests.training import PROJECT, eventually
from trainer.errors import PeerError
from vertex_launch.local.running.ended import Ended
from vertex_launch.local.running.host import free_addresses
from vertex_launch.local.running.namespaces import isolation
from vertex_launch.local.running.process import Process
from vertex_launch.replicas import Replica

CHIEF, WORKERS = ("workerpool0", "workerpool1")


def start(cluster: dict[str, list[str]], pool: str, index: int, folder: Path) -> "subprocess.Popen[str]":
    spec = {"cluster": cluster, "task": {"type": pool, "index": index}}
    return subprocess.Popen(
        [sys.executable, "-m", "trainer.task", "--rollcall-timeout", "10"],
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(PROJECT), "CLUSTER_SPEC": json.dumps(spec)},
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


@pytest.mark.slow
def test_a_training_that_is_process_1_ends_soon_after_sigterm(tmp_path: Path) -> None:
    lines: list[str] = []
    ended: queue.SimpleQueue[Ended] = queue.SimpleQueue()
    env = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(PROJECT), "AIP_CHECKPOINT_DIR": str(tmp_path)}
    chief = Replica(0, 0, (sys.executable, "-m", "trainer.task", "--steps", "1000000", "--log-every", "1"), env)
    process = Process(
        chief, tmp_path, lambda _, line, __: lines.append(line), isolation(), lambda _, one: ended.put(one)
    )
    try:
        assert eventually(lambda: any("step 1/" in line for line in lines), 240), lines
        process.terminate()
        assert ended.get(timeout=60).code == 143
        assert any("stopped by SIGTERM" in line for line in lines)
    finally:
        process.close()


@pytest.mark.slow
def test_an_absent_worker_is_named_by_every_replica_within_the_timeout(tmp_path: Path) -> None:
    chief, *workers = free_addresses(3)
    cluster = {CHIEF: [chief], WORKERS: workers}
    present = [start(cluster, CHIEF, 0, tmp_path), start(cluster, WORKERS, 0, tmp_path)]
    said = [process.communicate(timeout=180)[0] for process in present]  # most of it imports
    assert [process.returncode for process in present] == [PeerError.exit_code] * 2
    assert all("workerpool1-1 is absent" in text and "Traceback" not in text for text in said)
    assert all(int(text.rpartition("(waited ")[2].partition(" s)")[0]) < 25 for text in said)


def test_a_reducer_that_is_told_to_train_says_so_at_once(tmp_path: Path) -> None:
    cluster = {CHIEF: ["a:2222"], WORKERS: ["b:2222"], "workerpool2": ["c:2222"]}
    process = start(cluster, "workerpool2", 0, tmp_path)
    assert "workerpool2-0: only pools 0 and 1 train" in process.communicate(timeout=180)[0]
    assert process.returncode == 1


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--steps", "0"], "--steps is 0, must be at least 1"),
        (["--data", "gs://no/such"], "--data gs://no/such: there is no folder"),
        (["--patch", "3", "--steps", "60"], "--patch is 3, must divide the image"),
        (["--global-batch", "0", "--warmup", "-1"], "--warmup is -1"),
        (["--classes", "3"], "must be from 0 to below --classes (3)"),
    ],
)
def test_a_mistake_is_one_sentence_and_exit_code_1(flags: list[str], words: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "trainer.task", *flags]
    run = subprocess.run(
        command, cwd=tmp_path, env={"PYTHONPATH": str(PROJECT)}, capture_output=True, text=True, timeout=180
    )
    assert run.returncode == 1
    assert words in run.stdout
    assert "Traceback" not in run.stdout + run.stderr

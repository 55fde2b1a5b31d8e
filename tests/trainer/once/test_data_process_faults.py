"""The order of the batches that other processes make, and the end of these processes when something goes wrong."""

import multiprocessing
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.changed import change
from tests.samples import EXAMPLE
from tests.test_data_processes import OTHERS, STEPS
from tests.test_writable import FULL_DISK, as_root
from tests.training import DEADLINE, PROJECT, eventually, processes, signal_trainer, train
from trainer.config import Config
from trainer.samples import batches, shards

pytestmark = pytest.mark.proof
AT_ONCE = """
import gc, os, sys
from pathlib import Path
from trainer.samples import batches, shards
from trainer.config import Config

gc.disable()
dataset, config = shards.Dataset(Path(sys.argv[1]), "train"), Config(steps=4, global_batch=24, data_processes=2)
print(len([*batches.train_batches(dataset, config, start=0, rank=0, world_size=1)]), flush=True)
os._exit(0)
"""

FAILS_ELSEWHERE = """
import multiprocessing, urllib.error

_decode = decode


def decode(record):
    if multiprocessing.parent_process():
        raise {error}
    return _decode(record)
"""
ERRORS = {
    'urllib.error.HTTPError("http://host/1", 404, "Not Found", None, open("/dev/null", "rb"))': "404: Not Found",
    "SystemExit(0)": "SystemExit: 0",
    'OSError(28, "No space left on device", "/my/cache")': "No space left on device: '/my/cache'",
}


def test_the_batches_of_processes_are_those_of_threads_in_their_order(tmp_path: Path) -> None:
    shards.write_example(EXAMPLE, tmp_path)
    dataset, config = shards.Dataset(tmp_path, "train"), Config(steps=12, global_batch=24)
    both = (
        batches.train_batches(dataset, one, start=3, rank=1, world_size=2)
        for one in (config, Config(steps=12, global_batch=24, data_processes=2))
    )
    pairs = [*zip(*both, strict=True)]
    assert len(pairs) == 9
    for threads, others in pairs:
        for mine, theirs in zip(threads, others, strict=True):
            assert np.array_equal(mine, theirs)


def test_semaphores_of_processes_do_not_wait_for_the_garbage_collector(tmp_path: Path) -> None:
    shards.write_example(EXAMPLE, tmp_path)
    command = [sys.executable, "-c", AT_ONCE, str(tmp_path)]
    done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, timeout=DEADLINE)
    assert done.stdout == "4\n", done.stderr
    assert "leaked semaphore" not in done.stderr


# The first error can't be pickled.
@pytest.mark.parametrize(("error", "shown"), ERRORS.items(), ids=["no pickle", "exit", "full disk"])
def test_whatever_decode_raises_in_another_process_is_shown_and_ends_the_run(
    error: str, shown: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    change(tmp_path, "trainer/data.py", FAILS_ELSEWHERE.format(error=error), monkeypatch)
    command = [sys.executable, "-m", "trainer.task", *STEPS, "--warmup", "1", *OTHERS]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=DEADLINE)
    output = done.stdout + done.stderr
    assert done.returncode == 1, output
    assert shown in output
    assert "/dev/shm" not in output
    assert "leaked semaphore" not in output


def test_no_process_is_started_that_has_no_step(tmp_path: Path) -> None:
    shards.write_example(EXAMPLE, tmp_path)
    dataset, config = shards.Dataset(tmp_path, "train"), Config(steps=4, global_batch=24, data_processes=3)
    parts = batches.train_batches(dataset, config, start=3, rank=0, world_size=1)
    assert [len(multiprocessing.active_children()) for _ in parts] == [1]


@pytest.mark.skipif(sys.platform != "linux", reason="finds processes in /proc")
def test_a_replica_that_is_killed_leaves_no_process_for_its_data(tmp_path: Path) -> None:
    killed: list[bool] = []

    def kill_the_worker_after_the_first_steps() -> None:
        logs = [*tmp_path.glob(".vertex/jobs/*/workerpool0-0.log")]
        if not killed and logs and "step 3/" in logs[0].read_text(encoding="utf-8"):
            killed.append(signal_trainer(tmp_path, "workerpool1-0", signal.SIGKILL))

    broken = train(tmp_path, 2, "--steps", "2000", *OTHERS, watch=kill_the_worker_after_the_first_steps)
    assert (broken.code, killed) == (1, [True]), broken.output
    assert eventually(lambda: not processes("CLUSTER_SPEC", str(tmp_path)))


@as_root
def test_shared_memory_that_is_too_small_for_the_batches_is_one_sentence(tmp_path: Path) -> None:
    small = (*FULL_DISK, "/dev/shm")
    if subprocess.run([*small, "true"], capture_output=True).returncode != 0:
        pytest.skip("this machine lets nobody mount a disk")
    command = [sys.executable, "-m", "trainer.task", *STEPS, "--warmup", "1", *OTHERS, "--global-batch", "2000"]
    environ = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "PYTHONPATH": str(PROJECT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*small, *command], cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=DEADLINE
    )
    assert done.returncode == 1, done.stderr
    assert "/dev/shm doesn't have enough space for the batches of --data-processes; " in done.stdout
    assert "lower --data-processes, set it to 0 to use threads, or give the container more shared memory" in done.stdout
    assert "Traceback" not in done.stdout + done.stderr

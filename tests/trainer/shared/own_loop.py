"""Loops of one's own for tests: as a job in the local Vertex, or as bare processes, whose exit codes can be seen."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from tests.training import DEADLINE, PROJECT, SETTINGS, Run, eventually, job, processes
from vertex_launch.local.running.hosts import free_addresses

RUN = ("-m", "trainer.cluster.run")
MARK = "STARTED_BY_A_TEST_IN"  # a variable that all processes of a test have


def train(folder: Path, *words: str, options: tuple[str, ...] = (), start: Sequence[str] = RUN) -> Run:
    """Run `trainer.cluster.run WORDS`, or what Python starts otherwise, as a job of three replicas to its end."""
    spec = job(3) | {"scheduling": {"timeout": "3600s", "restartJobOnWorkerRestart": True}}
    for pool in spec["workerPoolSpecs"]:
        pool["containerSpec"] |= {"command": ["python", *start, *words]}
    (folder / "vertex.toml").write_text(SETTINGS)
    (folder / "job.yaml").write_text(yaml.safe_dump(spec))
    command = [sys.executable, "-m", "vertex_launch", "run", "job.yaml", *options]
    environ = os.environ | {"PYTHONPATH": str(PROJECT)}
    done = subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True, timeout=DEADLINE)
    (logs,) = (folder / ".vertex/jobs").iterdir()
    lines = {path.stem: path.read_text().splitlines() for path in logs.glob("*.log")}
    return Run(done.returncode, done.stdout + done.stderr, lines, folder)


def train_losing_one(folder: Path, *words: str) -> Run:
    """Run such a job and kill the last worker's training process once, after the chief's first report of a loss.

    All replicas must start again, and the job succeed.
    """

    def kill() -> None:
        logs = ".vertex/jobs/*/workerpool0-0.log"
        assert eventually(lambda: any('"train/loss"' in log.read_text() for log in folder.glob(logs)))
        os.kill(max(processes(str(folder), '"workerpool1", "index": 1', RUN[1])), signal.SIGKILL)

    threading.Thread(target=kill, daemon=True).start()
    run = train(folder, *words, options=("--restarts",))
    assert run.code == 0, run.output
    assert "workerpool1-1 was killed by SIGKILL (exit code 137). Restarting all replicas (restart 1 of 5)" in run.output
    return run


@dataclass(frozen=True)
class Replicas:
    """The running replicas of a job, by rank, and the files that they print into."""

    folder: Path
    processes: list["subprocess.Popen[bytes]"] = field(default_factory=list)

    def printed(self, rank: int) -> str:
        return (self.folder / f"{rank}.txt").read_text()

    def wait_for(self, words: str) -> None:
        """Return when each of them has printed these words."""
        ranks = range(len(self.processes))
        assert eventually(lambda: all(words in self.printed(rank) for rank in ranks)), [*map(self.printed, ranks)]

    def codes(self, seconds: float = DEADLINE) -> list[int]:
        """The exit codes; all replicas must end within so many seconds."""
        deadline = time.monotonic() + seconds
        return [process.wait(max(deadline - time.monotonic(), 0.1)) for process in self.processes]


@contextlib.contextmanager
def started(folder: Path, *words: str, count: int = 3, reducers: int = 0) -> Iterator[Replicas]:
    """Start `trainer.cluster.run WORDS` in each replica that trains; none outlives the block."""
    addresses = free_addresses(count + reducers)
    pools = {"workerpool0": addresses[:1], "workerpool1": addresses[1:count], "workerpool2": addresses[count:]}
    tasks = [("workerpool0", 0), *(("workerpool1", index) for index in range(count - 1))]
    running = Replicas(folder)
    try:
        for rank, (pool, index) in enumerate(tasks):
            spec = json.dumps({"cluster": pools, "task": {"type": pool, "index": index}})
            # RANK and WORLD_SIZE as the service sets them: they count machines, and must not matter.
            theirs = {"CLUSTER_SPEC": spec, "RANK": "7", "WORLD_SIZE": "9", "OMP_NUM_THREADS": "1", MARK: str(folder)}
            with (folder / f"{rank}.txt").open("wb") as output:
                command = [sys.executable, *RUN, *words]
                environ = os.environ | {"PYTHONPATH": str(PROJECT)} | theirs
                running.processes.append(
                    subprocess.Popen(command, cwd=folder, env=environ, stdout=output, stderr=subprocess.STDOUT)
                )
        yield running
    finally:
        for process_id in processes(f"{MARK}={folder}"):  # also those that a replica started
            with contextlib.suppress(ProcessLookupError):
                os.kill(process_id, signal.SIGKILL)
        for process in running.processes:
            process.kill()
            process.wait()


def refused(folder: Path, *words: str, task: str = "workerpool0") -> str:
    """The one sentence with which a command line is refused, before anybody waits."""
    pools = {pool: [f"localhost:{pool[-1]}1"] for pool in ("workerpool0", "workerpool1", task)}
    spec = json.dumps({"cluster": pools, "task": {"type": task, "index": 0}})
    environ = os.environ | {"PYTHONPATH": str(PROJECT), "CLUSTER_SPEC": spec}
    command = [sys.executable, *RUN, *words]
    done = subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True, timeout=DEADLINE)
    assert (done.returncode, done.stderr) == (1, "")
    (line,) = done.stdout.splitlines()
    return str(json.loads(line)["message"])

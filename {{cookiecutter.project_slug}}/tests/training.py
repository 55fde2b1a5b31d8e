"""Runs real training jobs for tests in the local Vertex. Each job has its own folder and a hard deadline."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

PROJECT = Path(__file__).resolve().parents[1]
SETTINGS = 'project = "p"\nregion = "us-central1"\nbucket = "b"\nimage = "image:1"\n[env]\nPYTHONPATH = true\n'
DEADLINE = 600.0  # seconds; a limit for hanging runs, many times the duration of a run on busy cores

# With a small batch, a steady rate, and a report of every loss, steps can be compared one by one. Replicas on a busy
# machine may start late.
FLAGS = (
    *("--global-batch", "24", "--warmup", "5", "--log-every", "1", "--evaluate-every", "1000"),
    *("--rollcall-timeout", "300"),
)

# Limits for the difference of two runs' losses: in the first ten steps, and later, when rounding grows in each step.
FIRST, LATER, GROWTH = 1e-5, 1e-4, 10.0
SUSPECTS = (
    "in the first steps, the cause might be a mean in losses() or BatchNorm statistics, which each process computes"
    " over its own batch; in later steps, the cause might be rounding, which grows with a higher --learning-rate"
)


@dataclass(frozen=True)
class Run:
    """The exit code of a finished job, the launcher's output, and the output lines of each replica."""

    code: int
    output: str
    lines: dict[str, list[str]]
    folder: Path

    @property
    def reports(self) -> list[dict[str, Any]]:
        """The chief's JSON lines."""
        return self.reports_of("workerpool0-0")

    def reports_of(self, replica: str) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.lines.get(replica, []) if line.startswith("{")]

    @property
    def result(self) -> dict[str, Any]:
        """The held-out loss and metrics of the exported model."""
        return next(report for report in reversed(self.reports) if "loss" in report)

    @property
    def losses(self) -> list[float]:
        return [loss for _, loss in self.losses_by_step]

    @property
    def losses_by_step(self) -> list[tuple[int, float]]:
        """The losses in the order of the reports. A step that was repeated after a restart appears twice."""
        return [(report["step"], report["train/loss"]) for report in self.reports if "train/loss" in report]

    @property
    def output_folder(self) -> Path:
        """The folder that contains AIP_MODEL_DIR and the other output folders."""
        return self.folder / ".vertex/gcs/b/run"


def divergence(expected: Mapping[int, float], losses: Sequence[tuple[int, float]]) -> str:
    """Describe the first step whose loss differs from the expected loss by more than rounding errors, or return ""."""
    rounding = FIRST
    for step, loss in losses:
        difference = abs(loss - expected[step])
        if not difference <= (FIRST if step <= 10 else max(LATER, GROWTH * rounding)):
            return f"step {step}: losses {loss} and {expected[step]} differ by {difference:.1e}; {SUSPECTS}"
        rounding = max(rounding, difference)
    return ""


def train(
    folder: Path,
    count: int,
    *flags: str,
    watch: Callable[[], None] = lambda: None,
    servers: int = 0,
    evaluated: bool = False,
    options: Sequence[str] = (),
) -> Run:
    """Train with `count` replicas, and call `watch` repeatedly until the job ends.

    Args:
        servers: the number of replicas in pool 2. These replicas run the same command.
        evaluated: True if pool 3 contains an evaluator.
        options: additional options of `vertex-launch run`.
    """
    with started(folder, count, *flags, servers=servers, evaluated=evaluated, options=options) as (process, show):
        deadline = time.monotonic() + DEADLINE
        while process.poll() is None:
            assert time.monotonic() < deadline, f"still running after {DEADLINE:g} s:\n{show.read_text()}"
            watch()
            time.sleep(0.05)
    (logs,) = sorted((folder / ".vertex/jobs").iterdir())[-1:]
    lines = {path.stem: path.read_text().splitlines() for path in logs.iterdir()}
    return Run(process.returncode, show.read_text(), lines, folder)


@contextlib.contextmanager
def started(
    folder: Path, count: int, *flags: str, servers: int = 0, evaluated: bool = False, options: Sequence[str] = ()
) -> Iterator[tuple["subprocess.Popen[bytes]", Path]]:
    """Yield the running launcher and the file with the launcher's output. After the block, kill all processes."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "vertex.toml").write_text(SETTINGS)
    (folder / "job.yaml").write_text(yaml.safe_dump(job(count, servers, evaluated)))
    show = folder / "shown.txt"
    command = [sys.executable, "-m", "vertex_launch", "run", "job.yaml", *options, "--", *FLAGS, *flags]
    with show.open("wb") as output:
        environment = os.environ | {"PYTHONPATH": str(PROJECT)}
        process = subprocess.Popen(
            command, cwd=folder, env=environment, stdout=output, stderr=output, start_new_session=True
        )
        try:
            yield process, show
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def job(count: int, servers: int = 0, evaluated: bool = False) -> dict[str, Any]:
    """Return a CustomJobSpec with a chief and count - 1 workers, and optionally parameter servers and an evaluator."""
    counts, modules = [1, count - 1, servers, int(evaluated)], [*["trainer.task"] * 3, "trainer.evaluator"]
    pools = [pool(*each) if each[0] else {} for each in zip(counts, modules, strict=True)]
    while not pools[-1]:
        pools.pop()
    return {"workerPoolSpecs": pools, "baseOutputDirectory": {"outputUriPrefix": "gs://b/run"}}


def pool(count: int, module: str) -> dict[str, Any]:
    """Return a pool of `count` replicas that run a module."""
    return {
        "machineSpec": {"machineType": "n1-standard-4"},
        "replicaCount": count,
        "containerSpec": {
            "imageUri": "image",
            "command": ["python", "-m", module],
            "env": [{"name": "OMP_NUM_THREADS", "value": "1"}],
        },
    }


def processes(*words: str) -> list[int]:
    """Return the IDs of processes whose environment variables and command line contain all these words (Linux only)."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            text = (folder / "environ").read_bytes() + (folder / "cmdline").read_bytes()
            if all(word.encode() in text for word in words):
                found.append(int(folder.name))
    return found


def signal_trainer(folder: Path, replica: str, number: signal.Signals) -> bool:
    """Send a signal to the replica's process `trainer.task`. Return True if the process exists (Linux only)."""
    pool, index = replica.split("-")
    found = False
    for process in processes(f'"{pool}", "index": {index}', str(folder)):
        with contextlib.suppress(OSError):  # exited in the meantime
            if Path(f"/proc/{process}/cmdline").read_bytes().split(b"\0")[1:3] == [b"-m", b"trainer.task"]:
                os.kill(process, number)
                found = True
    return found


def eventually(condition: Callable[[], bool], seconds: float = DEADLINE) -> bool:
    """Return True as soon as the condition is true. After `seconds`, return False."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.1)
    return True

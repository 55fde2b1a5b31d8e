"""Measure the step time and memory of the trainer and its rivals with the same model and data in two processes.

    python benchmarks/step.py pytorch|tensorflow images|text PROJECT [--page docs/speed.md] [--rounds 3] [--sizes tiny]

Run this benchmark in a Python environment with the framework and its rivals. The benchmark runs jobs in the local
Vertex. The trainer and the rivals take turns, so that other load on the machine affects all programs equally. A step
time is the median over all reports of a job except the first report. A ratio is the trainer's step time divided by the
rival's step time in the same round. The table shows the median of all rounds, with the minimum and maximum.
"""

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import yaml

HERE = Path(__file__).resolve().parent
OURS = ["-m", "trainer.task"]


class Rival(NamedTuple):
    name: str
    file: str
    examples: tuple[str, ...] = ("images", "text")


RIVALS = {
    "pytorch": (
        Rival("bare DDP", "ddp.py"),
        Rival("Accelerate", "with_accelerate.py"),
        Rival("Lightning", "with_lightning.py"),
    ),
    "tensorflow": (
        Rival("bare loop", "custom_loop.py"),
        Rival("tf_keras `fit`", "fit.py", ("images",)),
    ),
}


class Load(NamedTuple):
    """The load of one job, which trains a model of one size."""

    steps: int
    batch: int
    every: int  # steps between two reports

    def flags(self, size: str) -> list[str]:
        never = self.steps  # only at the end
        numbers = {"steps": self.steps, "global-batch": self.batch, "log-every": self.every, "warmup": 2}
        numbers |= {"evaluate-every": never, "checkpoint-every": never}
        return ["--size", size, *(word for name, number in numbers.items() for word in (f"--{name}", str(number)))]


LOADS = {"tiny": Load(400, 96, 50), "small": Load(40, 16, 5), "base": Load(12, 16, 2)}


class Job(NamedTuple):
    """The measurements of a job: seconds per step, and MiB of the job's largest process."""

    seconds: float
    memory: float


def main(framework: str, example: str, project: Path, rounds: int, sizes: list[str]) -> str:
    rows = []
    for size in sizes:
        commands = {"trainer": OURS} | {
            rival.name: [str(HERE / "rivals" / rival.file)] for rival in RIVALS[framework] if example in rival.examples
        }
        jobs: dict[str, list[Job]] = {name: [] for name in commands}
        for number in range(rounds):
            for name in turn(number, [*commands]):
                jobs[name].append(measure(["python", *commands[name], *LOADS[size].flags(size)], project))
                told = f"{1000 * jobs[name][-1].seconds:.1f} ms"
                print(f"{example} {size}, round {number + 1}, {name}: {told}", flush=True)
        rows.append(row(example, size, jobs, [rival.name for rival in RIVALS[framework]]))
    return "".join(rows)


def turn(number: int, names: list[str]) -> list[str]:
    """Return the names in the order of a round. A slowing machine favors the first name, so the first name rotates."""
    first = number % len(names)
    return names[first:] + names[:first]


def row(example: str, size: str, jobs: Mapping[str, list[Job]], rivals: list[str]) -> str:
    """Return one row of the table."""
    ours = jobs["trainer"]
    cells = [f"{example}, {size}", f"{1000 * statistics.median(job.seconds for job in ours):.1f} ms"]
    for name in rivals:
        pairs = zip(ours, jobs[name], strict=True) if name in jobs else ()
        ratios = [mine.seconds / theirs.seconds for mine, theirs in pairs]
        cells.append(spread(ratios, ".2f") if ratios else "")
    cells.append(", ".join(f"{max(job.memory for job in of_each):.0f}" for of_each in jobs.values()))
    return f"| {' | '.join(cells)} |\n"


def spread(values: list[float], form: str) -> str:
    """Return the median of the rounds, with the minimum and maximum."""
    middle, least, most = (f"{value:{form}}" for value in (statistics.median(values), min(values), max(values)))
    return f"{middle} ({least} to {most})"


def measure(command: list[str], project: Path) -> Job:
    with tempfile.TemporaryDirectory() as folder:
        log, memory = run_job(command, project, Path(folder))
        return Job(step_seconds(log), memory)


def run_job(command: list[str], project: Path, folder: Path) -> tuple[str, float]:
    """Run a job with two replicas, and return the chief's output and the MiB of the largest process."""
    (folder / "vertex.toml").write_text((project / "vertex.toml").read_text())
    (folder / "job.yaml").write_text(yaml.safe_dump(job(command)))
    process = subprocess.Popen(
        [sys.executable, "-m", "vertex_launch", "run", "job.yaml", "--pass-env", "PYTHONPATH"],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(project)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    peak = Peak(str(folder))
    output, _ = process.communicate(timeout=1200)
    memory = peak.stop()
    if process.returncode:
        raise SystemExit(output)
    (log,) = folder.glob(".vertex/jobs/*/workerpool0-0.log")
    return log.read_text(), memory


def step_seconds(log: str) -> float:
    """Return the seconds per step, including the time for reports. A rival's seconds also include this time."""
    told = [json.loads(line) for line in log.splitlines() if line.startswith("{")]
    steps = [report["train/step_seconds"] for report in told if "train/step_seconds" in report]
    last = max((report["step"] for report in told if "step" in report), default=1)
    reports = sum(report["seconds"]["reports"] for report in told if "goodput" in report)
    return float(statistics.median(steps[1:]) + reports / last)


def job(command: list[str]) -> dict[str, object]:
    pool = {
        "machineSpec": {"machineType": "n1-standard-4"},
        "replicaCount": 1,
        "containerSpec": {
            "imageUri": "image",
            "command": command,
            "env": [{"name": "OMP_NUM_THREADS", "value": "1"}],
        },
    }
    return {"workerPoolSpecs": [pool, pool], "baseOutputDirectory": {"outputUriPrefix": "gs://b/bench"}}


class Peak:
    """Measures the largest resident set size of all processes that run in a folder. Requires Linux."""

    def __init__(self, folder: str) -> None:
        self._folder = folder.encode()
        self._mebibytes = 0.0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()

    def stop(self) -> float:
        self._ended.set()
        self._thread.join()
        return self._mebibytes

    def _watch(self) -> None:
        while not self._ended.wait(0.5):
            for process in Path("/proc").glob("[0-9]*"):
                try:
                    if (
                        self._folder in (process / "environ").read_bytes()
                        and b"CLUSTER_SPEC" in (process / "environ").read_bytes()
                    ):
                        status = (process / "status").read_text()
                        self._mebibytes = max(self._mebibytes, int(re.findall(r"VmHWM:\s+(\d+)", status)[0]) / 1024)
                except (OSError, IndexError):
                    continue


def write(page: Path, framework: str, example: str, rows: str) -> None:
    """Replace the table rows of this framework and example in the page."""
    begin, end = f"<!-- begin {framework} {example} -->\n", f"<!-- end {framework} {example} -->\n"
    before, rest = page.read_text(encoding="utf-8").split(begin)
    page.write_text(before + begin + rows + end + rest.split(end)[1], encoding="utf-8")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("framework", choices=RIVALS)
    parser.add_argument("example", choices=("images", "text"))
    parser.add_argument("project", type=Path)
    parser.add_argument("--page", type=Path, help="replace the rows in this page")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--sizes", nargs="+", choices=LOADS, default=[*LOADS])
    given = parser.parse_args()
    rows = main(given.framework, given.example, given.project.resolve(), given.rounds, given.sizes)
    print(rows)
    if given.page:
        write(given.page, given.framework, given.example, rows)

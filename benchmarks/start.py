"""Measure how long a short run takes, and how many CPU seconds it costs.

    python benchmarks/start.py pytorch|tensorflow PROJECT [OTHER]

Run this benchmark with the project's own Python. First, the benchmark compares the time to the first step with
`vertex-launch run` and with processes that are started manually. It starts each chief and worker in a new folder. The
manually started processes receive the environment variables of `vertex-launch run`, which a job prints beforehand.

Second, three replicas of jobs/workers.yaml train for two steps and export the model. If you specify a second project,
for example from an older template, the benchmark compares both. Each project needs its own .venv.

All methods and projects take turns, so that other load on the machine affects them equally.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import yaml
from step import spread

ROUNDS = 5
SECONDS = 120  # limit of one run, which takes about 10 s
TRAIN = ["python", "-m", "trainer.task", "--steps", "1", "--global-batch", "96"]
FIRST_STEP = "step 1/1  loss"
PRINT = ["python", "-c", "import json, os; print(json.dumps(dict(os.environ)))"]
SHORT = ["run", "jobs/workers.yaml", "--max-replicas", "3", "--fresh", "--", "--steps", "2"]

Process = subprocess.Popen[bytes]


def main(framework: str, project: Path, *others: Path) -> None:
    seconds: dict[str, list[float]] = {"vertex-launch run": [], "hand": []}
    for number in range(ROUNDS):
        for name, measure in (("vertex-launch run", by_launch_run), ("hand", by_hand)):
            with tempfile.TemporaryDirectory() as folder:
                seconds[name].append(measure(Path(folder), project))
            print(f"round {number + 1} by {name:17} {seconds[name][-1]:6.2f} s", flush=True)
    ours, theirs = (statistics.median(found) for found in seconds.values())
    told = f"{ours:.1f} s by vertex-launch run, {theirs:.1f} s by hand, ratio {ours / theirs:.2f}"
    print(f"{framework}: first step after {told}")
    compare(framework, [project, *others])


def compare(framework: str, projects: list[Path]) -> None:
    """Print the cost of a short run in each project, and the ratios of the first project to the others."""
    costs: dict[Path, list[tuple[float, float, float]]] = {project: [] for project in projects}
    for _ in range(ROUNDS):
        for project in projects:
            costs[project].append(cost(project))
    names = "CPU seconds", "seconds until the second step", "seconds"
    for project, rounds in costs.items():
        for name, *pairs in zip(names, *map(zip, costs[projects[0]], rounds), strict=True):
            ratios = spread([ours / theirs for ours, theirs in pairs], ".2f")
            found = spread([theirs for _, theirs in pairs], ".1f")
            print(f"{framework}, three replicas, {project}: {found} {name}; the first project / this: {ratios}")


def cost(project: Path) -> tuple[float, float, float]:
    """Return the CPU seconds of all processes of a short run, and the seconds until its second step and its end."""
    began, second_step = time.monotonic(), 0.0
    command = [str(project / ".venv/bin/python"), "-m", "vertex_launch", *SHORT]
    with subprocess.Popen(command, cwd=project, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as run:
        assert run.stdout
        shown = []
        for line in run.stdout:
            shown.append(line)
            if not second_step and "step 2/2  loss" in line:
                second_step = time.monotonic() - began
        _, status, usage = os.wait4(run.pid, 0)
        run.returncode = os.waitstatus_to_exitcode(status)
    if run.returncode:
        raise SystemExit("".join(shown))
    return usage.ru_utime + usage.ru_stime, second_step, time.monotonic() - began


def by_launch_run(folder: Path, project: Path) -> float:
    """Return the seconds from the launcher's start to the chief's first step."""
    began = time.monotonic()
    return follow([launch_run(TRAIN, folder, project)], folder, began)


def by_hand(folder: Path, project: Path) -> float:
    """Return the seconds from the chief's start to its first step."""
    launch_run(PRINT, folder, project).wait(timeout=SECONDS)
    logs = sorted(folder.glob(".vertex/jobs/*/workerpool*.log"))  # the chief's is the first
    environments = [json.loads(log.read_text()) for log in logs]
    began = time.monotonic()
    return follow([start(TRAIN, folder, environment) for environment in environments], folder, began)


def launch_run(command: list[str], folder: Path, project: Path) -> Process:
    """Start `vertex-launch run` with a job of two replicas that run this command."""
    (folder / "vertex.toml").write_text((project / "vertex.toml").read_text())
    (folder / "job.yaml").write_text(yaml.safe_dump(job(command)))
    environment = os.environ | {"PYTHONPATH": str(project)}
    return start(
        [sys.executable, "-m", "vertex_launch", "run", "job.yaml", "--pass-env", "PYTHONPATH"], folder, environment
    )


def job(command: list[str]) -> dict[str, object]:
    pool = {
        "machineSpec": {"machineType": "n1-standard-4"},
        "replicaCount": 1,
        "containerSpec": {"imageUri": "image", "command": command},
    }
    return {"workerPoolSpecs": [pool, pool], "baseOutputDirectory": {"outputUriPrefix": "gs://b/bench"}}


def start(command: list[str], folder: Path, environment: Mapping[str, str]) -> Process:
    """Start a process that appends its output to a shared file of all processes."""
    with (folder / "shown.txt").open("ab") as shown:
        return subprocess.Popen(command, cwd=folder, env=environment, stdout=shown, stderr=shown)


def follow(processes: Sequence[Process], folder: Path, began: float) -> float:
    """Wait until all processes have exited, and return the seconds from `began` to the first step."""
    shown, first_step = folder / "shown.txt", 0.0
    while any(process.poll() is None for process in processes):
        if not first_step and FIRST_STEP in shown.read_text():
            first_step = time.monotonic() - began
        if time.monotonic() - began > SECONDS:
            for process in processes:
                process.terminate()
            raise SystemExit(f"still running after {SECONDS} s:\n{shown.read_text()}")
        time.sleep(0.01)
    if not first_step or any(process.returncode for process in processes):
        raise SystemExit(shown.read_text())
    return first_step


if __name__ == "__main__":
    framework, *folders = sys.argv[1:]
    main(framework, *(Path(folder).resolve() for folder in folders))

"""Compare jobs that lose replicas at random steps: the elastic strategy, and ddp with restarts of the whole job.

    python benchmarks/elastic.py PROJECT [--steps 600] [--kills 4] [--rounds 5] [--seed 7]

Run this benchmark with the project's own Python. Both strategies run their own job file with three replicas, a
checkpoint every 20 steps, and the same kills: the same replicas at the same steps. In each round, the kills differ, and
the strategies take turns, so that other load on the machine affects both equally. Goodput is the number of steps
divided by the duration of the job, from the launcher's start to its end. The trainer's own goodput covers only the time
since the chief's last start. A kill's pause is the time until the job finishes a step that it hadn't finished before.
The step time comes from additional jobs without kills.
"""

import argparse
import json
import os
import random
import re
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from program import Line, started
from step import spread, turn

JOBS = {"ddp": "workers", "elastic": "elastic"}
REPLICAS = ("workerpool0-0", "workerpool1-0", "workerpool1-1")
FLAGS = {"checkpoint-every": 20, "log-every": 5, "warmup": 5, "evaluate-every": 10**6, "collective-timeout": 60}
SECONDS = 900.0  # limit of one job
STEP = re.compile(r"step (\d+)/\d+  loss")
COLUMNS = ("Strategy", "Steps per s", "Ratio to ddp", "Goodput of the last start", "Pause after a kill", "Step")


class Run(NamedTuple):
    """The measurements of one job."""

    steps_per_second: float
    goodput: float  # the trainer's own, from 0 to 1
    pauses: list[float]  # seconds after each kill
    step: float  # seconds


def main(project: Path, steps: int, kills: int, rounds: int, seed: int) -> None:
    dice = random.Random(seed)
    broken: dict[str, list[Run]] = {name: [] for name in JOBS}
    whole: dict[str, list[Run]] = {name: [] for name in JOBS}
    for number in range(rounds):
        plan = [*zip(dice.choices(REPLICAS, k=kills), sorted(dice.sample(range(1, steps), kills)), strict=True)]
        faults = [f"{replica}:kill@step={step}" for replica, step in plan]
        print(f"round {number + 1}: {', '.join(faults)}", flush=True)
        for name in turn(number, [*JOBS]):
            broken[name].append(measure(project, JOBS[name], steps, faults))
            whole[name].append(measure(project, JOBS[name], steps, []))
            print(f"round {number + 1}, {name}: {broken[name][-1]}, without kills {whole[name][-1]}", flush=True)
    print(table(broken, whole))


def measure(project: Path, job: str, steps: int, faults: Sequence[str]) -> Run:
    """Run a job with these faults."""
    flags = [word for name, value in (FLAGS | {"steps": steps}).items() for word in (f"--{name}", str(value))]
    words = [word for fault in faults for word in ("--fault", fault)]
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "vertex_launch", "run", f"jobs/{job}.yaml", "--max-replicas", "3"]
        command += ["--state-dir", folder, "--restarts", *words, "--", *flags]
        began, environ = time.monotonic(), os.environ | {"OMP_NUM_THREADS": "1"}
        with started(command, project, environ, SECONDS) as lines:
            shown = [*lines]
        logs = [log.read_text() for log in Path(folder).glob("jobs/*/workerpool0-0.log")]
    if not any(line.text.startswith("Job succeeded") for line in shown):
        raise SystemExit("\n".join(line.text for line in shown))
    reports = [json.loads(line) for line in logs[0].splitlines() if line.startswith("{")]
    goodput = [report["goodput"] for report in reports if "goodput" in report]
    seconds = [report["train/step_seconds"] for report in reports if "train/step_seconds" in report]
    return Run(steps / (shown[-1].at - began), goodput[-1], pauses(shown), statistics.median(seconds))


def pauses(lines: Sequence[Line]) -> list[float]:
    """Return the seconds from each kill to the first report of a step after all steps that were reported before."""
    found, reached, waiting = list[float](), 0, list[float]()
    for line in lines:
        if "simulated fault: " in line.text:
            waiting.append(line.at)
        if (match := STEP.search(line.text)) and int(match[1]) > reached:
            found += [line.at - kill for kill in waiting]
            reached, waiting = int(match[1]), []
    return found


def table(broken: dict[str, list[Run]], whole: dict[str, list[Run]]) -> str:
    rows = [f"| {' | '.join(COLUMNS)} |", f"|---|{'---:|' * (len(COLUMNS) - 1)}"]
    for name, runs in broken.items():
        pairs = zip(runs, broken["ddp"], strict=True)
        waits = [pause for run in runs for pause in run.pauses]
        steps = zip(whole[name], whole["ddp"], strict=True)
        cells = [
            name,
            spread([run.steps_per_second for run in runs], ".1f"),
            spread([run.steps_per_second / ddp.steps_per_second for run, ddp in pairs], ".2f"),
            f"{spread([100 * run.goodput for run in runs], '.0f')} %",
            f"{spread(waits, '.1f')} s" if waits else "",
            f"{1000 * statistics.median(run.step for run in whole[name]):.1f} ms, ratio"
            f" {spread([run.step / ddp.step for run, ddp in steps], '.2f')}",
        ]
        rows.append(f"| {' | '.join(cells)} |")
    return "".join(f"{row}\n" for row in rows)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("project", type=Path)
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--kills", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1000), help="of the kills")
    given = parser.parse_args()
    main(given.project.resolve(), given.steps, given.kills, given.rounds, given.seed)

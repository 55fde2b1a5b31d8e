"""Compare runs that save a checkpoint every 20 steps with runs that save a checkpoint only at the end.

    python benchmarks/stall.py pytorch|tensorflow PROJECT [--page docs/speed.md] [--size base] [--steps 60] [--rounds 3]

Run this benchmark with the project's own Python. The two variants take turns, so that other load on the machine affects
both variants equally. The table shows two costs of a checkpoint. The first cost is the time that the training loop
waits, which the run's goodput line contains. The second cost is the total slowdown, because steps are slower while a
background thread writes. Both costs exclude the final wait after the last step, because no step waits at that time.
"""

import argparse
import json
import statistics
import tempfile
from pathlib import Path
from typing import NamedTuple

from step import RIVALS, Load, run_job, spread, write

NAMES = {"pytorch": "PyTorch", "tensorflow": "TensorFlow"}
EVERY = 20  # steps between two checkpoints, and between two reports
BATCH = 4


class Run(NamedTuple):
    step: float  # seconds, without the wait for a checkpoint
    wait: float  # seconds per checkpoint


def main(framework: str, project: Path, size: str, steps: int, rounds: int) -> str:
    """Return the table row for this framework."""
    often, once = list[Run](), list[Run]()
    for number in range(rounds):
        for every, runs in ((EVERY, often), (steps, once)):
            runs.append(measure(project, size, steps, every))
            print(f"round {number + 1}, with a checkpoint every {every} steps: {runs[-1]}", flush=True)
    return row(NAMES[framework], size, often, once)


def row(name: str, size: str, often: list[Run], once: list[Run]) -> str:
    """Return one row of the table."""
    pairs = [*zip(often, once, strict=True)]
    waits = [100 * mine.wait / EVERY / theirs.step for mine, theirs in pairs]
    longer = [100 * ((mine.step + mine.wait / EVERY) / theirs.step - 1) for mine, theirs in pairs]
    cells = [
        f"{name}, {size}",
        f"{1000 * statistics.median(run.step for run in once):.1f} ms",
        f"{1000 * statistics.median(run.wait for run in often):.0f} ms",
        f"{spread(waits, '.1f')} %",
        f"{spread(longer, '.1f')} %",
    ]
    return f"| {' | '.join(cells)} |\n"


def measure(project: Path, size: str, steps: int, every: int) -> Run:
    flags = [*Load(steps, BATCH, EVERY).flags(size), "--checkpoint-every", str(every), "--keep", "1"]
    with tempfile.TemporaryDirectory() as folder:
        log, _ = run_job(["python", "-m", "trainer.task", *flags], project, Path(folder))
    return found(log, saves=-(-steps // every))


def found(log: str, saves: int) -> Run:
    """Read all reports of the chief except the first report, which includes the first step and no checkpoint."""
    told = [json.loads(line) for line in log.splitlines() if line.startswith("{")]
    steps = [report["train/step_seconds"] for report in told if "train/step_seconds" in report]
    (seconds,) = (line["seconds"] for line in told if "goodput" in line)
    return Run(statistics.mean(steps[1:]), seconds["checkpoints"] / saves)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("framework", choices=RIVALS)
    parser.add_argument("project", type=Path)
    parser.add_argument("--page", type=Path, help="replace the row in this page")
    parser.add_argument("--size", default="base")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    if given.steps % EVERY or given.steps == EVERY:
        parser.error(f"--steps is {given.steps}, but it must be a multiple of {EVERY} and at least {2 * EVERY}")
    told = main(given.framework, given.project.resolve(), given.size, given.steps, given.rounds)
    print(told)
    if given.page:
        write(given.page, given.framework, "stall", told)

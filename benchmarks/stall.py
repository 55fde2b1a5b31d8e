"""What checkpoints cost a training: `base` in two processes, with one every 20 steps and with one at the end.

    python benchmarks/stall.py PROJECT [--steps 60] [--rounds 3]

Run by the project's own Python. Both ways in turn, so that a noisy machine disturbs both alike. A save is told twice:
the seconds for which the loop waits, from the line with the run's goodput, and all that it costs, as steps are slower
while another thread writes.
"""

import argparse
import json
import tempfile
from pathlib import Path
from typing import NamedTuple

from step import Load, run_job, spread

EVERY = 20


class Run(NamedTuple):
    step: float  # seconds, without those that the loop waits for a save
    waiting: float  # seconds for saves, in all

    def whole(self, steps: int) -> float:
        return self.step + self.waiting / steps


def main(project: Path, steps: int, rounds: int) -> None:
    found: dict[int, list[Run]] = {EVERY: [], steps: []}
    for number in range(rounds):
        for every, runs in found.items():
            runs.append(measure(project, steps, every))
            print(f"round {number + 1}, a checkpoint every {every} steps: {runs[-1]}", flush=True)
    often, once = found[EVERY], found[steps]
    waits = [100 * run.waiting / steps / run.step for run in often]
    slower = [100 * (mine.whole(steps) / theirs.whole(steps) - 1) for mine, theirs in zip(often, once, strict=True)]
    share, longer = spread(waits, ".1f"), spread(slower, ".1f")
    print(f"with a checkpoint every {EVERY} steps the loop waits for {share} % of a step")
    print(f"and takes {longer} % longer, as writing takes cores that compute here, and would be free beside GPUs")


def measure(project: Path, steps: int, every: int) -> Run:
    flags = [*Load(steps, 4, EVERY).flags("base"), "--checkpoint-every", str(every), "--keep", "1"]
    with tempfile.TemporaryDirectory() as folder:
        log, _ = run_job(["python", "-m", "trainer.task", *flags], project, Path(folder))
    (seconds,) = (json.loads(line)["seconds"] for line in log.splitlines() if '"goodput"' in line)
    return Run((seconds["training"] + seconds["data"]) / (steps - 1), seconds["checkpoints"])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("project", type=Path)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    main(given.project.resolve(), given.steps, given.rounds)

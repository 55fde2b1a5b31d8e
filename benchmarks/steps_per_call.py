"""Measure several steps in one call of TensorFlow: the trainer in one process with 1 and with 10 of them.

    PROJECT/.venv/bin/python benchmarks/steps_per_call.py PROJECT

Python's part of a step costs the same whatever the step computes, so a small batch of the tiny model shows most of
it, and a large one little. The two take turns, so that a noisy machine disturbs both alike; printed are the medians
over all reports but each run's first.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROUNDS = 3
STEPS = 400
CALLS = (1, 10)
BATCHES = (8, 96)  # the second is the default


def main(project: Path) -> None:
    for batch in BATCHES:
        seconds: dict[int, list[float]] = {count: [] for count in CALLS}
        for _ in range(ROUNDS):
            for count in CALLS:
                seconds[count] += measure(project, batch, count)
        one, ten = (statistics.median(seconds[count]) for count in CALLS)
        print(f"batch {batch}: {1000 * one:.2f} ms a step with 1 a call, {1000 * ten:.2f} ms with 10", end="")
        print(f", so {one / ten:.2f} times the throughput", flush=True)


def measure(project: Path, batch: int, count: int) -> list[float]:
    """The seconds a step in the reports of one run."""
    flags = {"steps": STEPS, "log-every": 50, "evaluate-every": STEPS, "checkpoint-every": STEPS}
    flags |= {"global-batch": batch, "steps-per-call": count}
    command = [sys.executable, "-m", "trainer.task", *(word for k, v in flags.items() for word in (f"--{k}", str(v)))]
    with tempfile.TemporaryDirectory() as folder:
        environment = os.environ | {"PYTHONPATH": str(project), "OMP_NUM_THREADS": "1"}
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=600)
    if done.returncode:
        raise SystemExit(done.stdout + done.stderr)
    reports = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    return [report["train/step_seconds"] for report in reports if "train/step_seconds" in report][1:]


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())

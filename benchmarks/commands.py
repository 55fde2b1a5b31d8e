"""Seconds that `vertex-launch check` and `vertex-launch plan` take.

    python benchmarks/commands.py PROJECT

Run by the project's own Python. `check` is measured without its imports, for ten files, the project's own several
times; `plan` as a whole command: at first, when it asks the trainer, and then, when it remembers the answer.
"""

import importlib
import os
import shutil
import statistics
import subprocess
import sys
import time
from datetime import date
from pathlib import Path

FILES, ROUNDS = 10, 10
MODULES = ("rules.check", "settings", "rules.training")  # of the launcher, whose imports are timed
GOOGLES = (
    "google.cloud.aiplatform_v1",
    "google.cloud.aiplatform_v1.types",
)  # which no command runs whole
REMEMBERED = Path(".vertex/described")
PLAN = [sys.executable, "-m", "vertex_launch", "plan", "jobs/workers.yaml"]


def main(project: Path) -> None:
    os.chdir(project)
    check()
    plan()


def check() -> None:
    """Print the median of ten rounds, and how long the imports take before."""
    began = time.perf_counter()
    for package in GOOGLES:
        importlib.import_module("vertex_launch.__main__").run_when_needed(package)
    examiner, settings, training = (importlib.import_module(f"vertex_launch.{name}") for name in MODULES)
    imported = time.perf_counter() - began
    own = sorted(Path("jobs").glob("*.yaml"))
    paths = [own[number % len(own)] for number in range(FILES)]

    def seconds() -> float:
        began = time.perf_counter()
        ours, around = settings.load(Path("vertex.toml")), training.project(Path(), date.today())
        examined = [examiner.examine(path, ours, around) for path in paths]
        assert all(one.passes(strict=False) for one in examined)
        return time.perf_counter() - began

    found = [seconds() for _ in range(ROUNDS)]
    print(f"check: {statistics.median(found):.2f} s for {FILES} files, after {imported:.2f} s of imports")


def plan() -> None:
    """Print how long the first plan takes, and the median of five more."""
    shutil.rmtree(REMEMBERED, ignore_errors=True)

    def seconds() -> float:
        began = time.perf_counter()
        subprocess.run(PLAN, stdout=subprocess.DEVNULL, check=True)
        return time.perf_counter() - began

    first, *others = (seconds() for _ in range(6))
    print(f"plan: {first:.1f} s at first, then {statistics.median(others):.2f} s")


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())

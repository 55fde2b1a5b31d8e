"""Measure the time that `vertex-launch check` and `vertex-launch plan` take.

    python benchmarks/commands.py PROJECT

Run this benchmark with the project's own Python. The benchmark measures `check` without imports on ten job files, some
of which are the same. The benchmark measures `plan` as an entire command. The first run of
`plan` starts the trainer, and later runs reuse the trainer's result.
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
MODULES = ("rules.check", "settings", "rules.training")  # modules of the launcher whose imports are timed
GOOGLES = (
    "google.cloud.aiplatform_v1",
    "google.cloud.aiplatform_v1.types",
)  # packages that no command imports completely
REMEMBERED = Path(".vertex/described")
PLAN = [sys.executable, "-m", "vertex_launch", "plan", "jobs/workers.yaml"]


def main(project: Path) -> None:
    os.chdir(project)
    check()
    plan()


def check() -> None:
    """Print the median time of ten rounds, and the time of the imports."""
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
    """Print the time of the first plan, and the median time of five more plans."""
    shutil.rmtree(REMEMBERED, ignore_errors=True)

    def seconds() -> float:
        began = time.perf_counter()
        subprocess.run(PLAN, stdout=subprocess.DEVNULL, check=True)
        return time.perf_counter() - began

    first, *others = (seconds() for _ in range(6))
    print(f"plan: {first:.1f} s for the first run, then {statistics.median(others):.2f} s")


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())

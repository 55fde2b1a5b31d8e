"""How long `launch check` takes for ten job files, once its modules are imported.

    python benchmarks/check.py PROJECT

Run by the project's own Python. The files are the project's own, each several times; printed are the medians of ten
rounds, and how long the imports take before.
"""

import importlib
import os
import statistics
import sys
import time
from datetime import date
from pathlib import Path

FILES, ROUNDS = 10, 10
MODULES = ("launch.check", "launch.settings", "launch.rules.training")  # the project's, not known here


def main(project: Path) -> None:
    os.chdir(project)
    sys.path.insert(0, str(project))
    began = time.perf_counter()
    check, settings, training = map(importlib.import_module, MODULES)
    imported = time.perf_counter() - began
    own = sorted(Path("jobs").glob("*.yaml"))
    paths = [own[number % len(own)] for number in range(FILES)]

    def seconds() -> float:
        began = time.perf_counter()
        ours, around = settings.load(Path("vertex.toml")), training.project(Path(), date.today())
        examined = [check.examine(path, ours, around) for path in paths]
        assert all(one.passes(strict=True) for one in examined)
        return time.perf_counter() - began

    found = [seconds() for _ in range(ROUNDS)]
    print(f"check: {statistics.median(found):.2f} s for {FILES} files (from {min(found):.2f} to {max(found):.2f})")
    print(f"imports before: {imported:.2f} s")


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())

"""Measure the time to generate a default project: the median of ten commands.

python benchmarks/bake.py
"""

import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
ROUNDS = 10


def bake() -> float:
    """Generate one project and return the seconds that it took."""
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        command = [sys.executable, "-m", "cookiecutter", "--no-input", "--output-dir", folder, str(ROOT)]
        subprocess.run(command, check=True, capture_output=True)
        return time.perf_counter() - began


if __name__ == "__main__":
    seconds = [bake() for _ in range(ROUNDS)]
    print(f"bake: {statistics.median(seconds):.2f} s (from {min(seconds):.2f} to {max(seconds):.2f})")

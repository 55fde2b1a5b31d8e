"""Measure the time to generate a project with the default answers. The result is the median of ten commands.

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
    """Generate one project and return the duration in seconds."""
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        command = [sys.executable, "-m", "cookiecutter", "--no-input", "--output-dir", folder, str(ROOT)]
        subprocess.run(command, check=True, capture_output=True)
        return time.perf_counter() - began


if __name__ == "__main__":
    seconds = [bake() for _ in range(ROUNDS)]
    print(f"bake: {statistics.median(seconds):.2f} s ({min(seconds):.2f} s to {max(seconds):.2f} s)")

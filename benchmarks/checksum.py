"""Measure how fast one core verifies the checksum of a checkpoint file that is cached in memory.

python benchmarks/checksum.py PROJECT
"""

import importlib
import os
import sys
import tempfile
import time
from pathlib import Path

SIZE = 2**29  # bytes
ROUNDS = 5


def main(project: Path) -> None:
    sys.path.insert(0, str(project))
    storage = importlib.import_module("trainer.vertex.storage")
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "file"
        file.write_bytes(os.urandom(SIZE))
        found = [measure(storage.checksum, file) for _ in range(ROUNDS)]
    print(f"checksum: {max(found):.1f} GB/s on one core (slowest round: {min(found):.1f})")


def measure(checksum: object, file: Path) -> float:
    """Return GB per second of CPU time. CPU time excludes the time in which other processes use the cores."""
    assert callable(checksum)
    began = time.process_time()
    checksum(file)
    return SIZE / 1e9 / (time.process_time() - began)


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())

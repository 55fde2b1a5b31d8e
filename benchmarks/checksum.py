"""Speed at which a checkpoint is verified: GB/s of a core, of a file that is in memory.

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
    print(f"checksum: {max(found):.1f} GB/s of a core (from {min(found):.1f})")


def measure(checksum: object, file: Path) -> float:
    """GB per second of this process's own time, since others may keep the cores busy."""
    assert callable(checksum)
    began = time.process_time()
    checksum(file)
    return SIZE / 1e9 / (time.process_time() - began)


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())

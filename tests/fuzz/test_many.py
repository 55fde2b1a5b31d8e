"""Many more cases, from another seed each time, which the failure names."""

import os
import secrets
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT

FILES = sorted({*Path(__file__).parent.glob("test_*.py")} - {Path(__file__)})
MINUTES = 30
# Where files that each case writes anew never wait for a disk.
MEMORY = {"PYTEST_DEBUG_TEMPROOT": "/dev/shm"} if Path("/dev/shm").is_dir() else {}


@pytest.mark.slow
@pytest.mark.proof
@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_20_000_cases(file: Path) -> None:
    seed = f"--hypothesis-seed={secrets.randbits(32)}"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", seed, str(file)]
    environ = os.environ | MEMORY | {"FUZZ": "proofs"}
    process = subprocess.Popen(
        command,
        cwd=ROOT,
        env=environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    print(seed)
    try:
        output, _ = process.communicate(timeout=60 * MINUTES)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == 0, f"FUZZ=proofs {shlex.join(command)}\n{output}"

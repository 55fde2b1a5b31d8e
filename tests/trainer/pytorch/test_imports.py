"""The supervisor, which waits for the training processes, imports nothing that only they need."""

import subprocess
import sys

import pytest

from tests.training import DEADLINE, PROJECT

LATE = {"torch", "numpy", "grain", "tyro", "psutil", "trainer.train", "trainer.config", "trainer.cluster.processes"}


@pytest.mark.parametrize("program", ["task", "cluster.run"])
def test_the_supervisor_imports_neither_pytorch_nor_the_trainer(program: str) -> None:
    script = f"import sys, trainer.{program}; print(*sys.modules, sep='\\n')"
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, timeout=DEADLINE)
    assert done.returncode == 0, done.stderr
    assert "trainer.cluster.supervisor" in done.stdout.split()
    assert LATE & {*done.stdout.split()} == set()

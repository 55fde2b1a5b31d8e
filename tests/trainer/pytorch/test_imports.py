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


HELP = """
import sys
from trainer.parallel import choice
try:
    choice.parse(["--help"])
finally:
    print(*sys.modules, file=sys.stderr)
"""


def test_help_imports_no_strategy_that_is_not_chosen() -> None:
    command = [sys.executable, "-c", HELP]
    done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, timeout=DEADLINE)
    assert "--bucket-cap-mb" in done.stdout
    assert {"trainer.parallel.ddp", "trainer.parallel.fsdp"} & {*done.stderr.split()} == {"trainer.parallel.ddp"}

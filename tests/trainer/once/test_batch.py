"""A data.py whose batches lack what the loop needs is refused before any process starts."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.training import DEADLINE, PROJECT

OWN = "\nBatch = NamedTuple('Batch', [('pixels', Array), ('labels', Array)])\n"
SENTENCE = "trainer/data.py: Batch has pixels, labels, but not `inputs`; rename the model's input array to `inputs`"


PROGRAMS = ("describe", *(pytest.param(name, marks=pytest.mark.proof) for name in ("task", "evaluator")))


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_batch_without_inputs_is_refused_in_one_sentence(program: str, tmp_path: Path) -> None:
    shutil.copytree(PROJECT / "trainer", tmp_path / "trainer")
    with (tmp_path / "trainer/data.py").open("a", encoding="utf-8") as text:
        text.write(OWN)
    command = [sys.executable, "-m", f"trainer.{program}"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=DEADLINE)
    assert (done.returncode, json.loads(done.stdout)["message"]) == (1, SENTENCE), done.stderr

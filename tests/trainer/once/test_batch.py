"""What the loop needs of a data.py, and how it reads from a slow disk."""

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import grain
import pytest

from tests.changed import change
from tests.samples import EXAMPLE
from tests.training import DEADLINE
from trainer.samples import shards

OWN = "\nBatch = NamedTuple('Batch', [('pixels', Array), ('labels', Array)])\n"
SENTENCE = "trainer/data.py: Batch has pixels, labels, but not `inputs`; rename the model's input array to `inputs`"


PROGRAMS = ("describe", *(pytest.param(name, marks=pytest.mark.proof) for name in ("task", "evaluator")))


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_batch_without_inputs_is_refused_in_one_sentence(
    program: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    change(tmp_path, "trainer/data.py", OWN, monkeypatch)
    command = [sys.executable, "-m", f"trainer.{program}"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=DEADLINE)
    assert (done.returncode, json.loads(done.stdout)["message"]) == (1, SENTENCE), done.stderr


def test_a_disk_with_slow_reads_is_read_in_parallel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reads, read = list[int](), grain.sources.ArrayRecordDataSource.__getitem__

    def read_slowly(source: Any, index: int) -> bytes:
        reads.append(index)
        time.sleep(0.002)
        return bytes(read(source, index))

    monkeypatch.setattr(grain.sources.ArrayRecordDataSource, "__getitem__", read_slowly)
    shards.write_example(EXAMPLE, tmp_path)
    dataset = shards.Dataset(tmp_path, "heldout")
    of_start = len(reads)
    assert len(dataset.samples(range(9))) == 9
    assert len(reads) == of_start

"""Writes docs/faults.md from a run of all cells of the matrix.

python -m tests.matrix.page PYTORCH_PROJECT TENSORFLOW_PROJECT
"""

import sys
import tempfile
from collections.abc import Iterator, Mapping
from itertools import groupby
from pathlib import Path

from tests.conftest import ROOT
from tests.matrix.cells import CELLS, DEADLINE, INTERVAL, NAMED_IN, Cell, Verdict, run_all

PAGE = ROOT / "docs/faults.md"
FRAMEWORKS = ("pytorch", "tensorflow")
HEAD = """\
# What faults do to a job

`nox -s faults` wrote this page from a run of {count} cells: {kept} keep the promise. A cell is a job of 60 steps with a
checkpoint every {interval}, run with [`--fault`](launcher/rehearse.md) and, where it failed, once more without. The
promise: no job hangs (here: {deadline} s), none fails silently, the first lines after the job's end name the guilty
replica within {named_in} s of the fault, and the next run resumes from the last checkpoint.

A fault without an `@` changes the project's code for one replica (`tests/matrix/changes.py`). Where it is named
`hangs-...`, the process lives on inside that function. Where it is named `another-...` or `a-sample-less`, the job
would end well, with another result. A TensorFlow chief that hangs while it writes a checkpoint is missing here: the
others wait for it for a day.

Other faults that nobody can order are tests of the trainer: a number that is none (`test_nonfinite.py`), two jobs on
one folder (`test_lease.py`), a shard that is missing, changed or damaged (`test_fingerprint.py`, `test_damage.py`), a
folder that is full or read-only (`test_writable.py`, `test_lost_reports.py`), and twenty kills at random steps
(`test_random_kills.py`).

*named*: the replica in the line `Job failed: ...` or in the sentence below it. *resumed*: the step at which the job
went on, after a restart or in the next run. *seconds*: of the run with the fault. Two cells ran at once, on shared
cores.
"""
TABLE = """
## {framework}, {strategy}

| Fault | End | Named | Resumed | Seconds | Promise |
|---|---|---|---:|---:|---|
"""


def page(verdicts: Mapping[str, Verdict]) -> str:
    """Return the whole page."""
    kept = sum(not verdict.shortfalls for verdict in verdicts.values())
    head = HEAD.format(count=len(CELLS), kept=kept, interval=INTERVAL, deadline=DEADLINE, named_in=NAMED_IN)
    return head + "".join(_tables(verdicts))


def _tables(verdicts: Mapping[str, Verdict]) -> Iterator[str]:
    for (framework, strategy), cells in groupby(CELLS, lambda cell: (cell.framework, cell.strategy)):
        yield TABLE.format(framework={"pytorch": "PyTorch"}.get(framework, "TensorFlow"), strategy=strategy)
        yield from (_row(cell, verdicts[cell.id]) for cell in cells)


def _row(cell: Cell, verdict: Verdict) -> str:
    words = [f"`{word}`" for word in (*cell.faults, *cell.options)]
    resumed = "" if verdict.resumed < 0 else str(verdict.resumed)
    promise = "; ".join(verdict.shortfalls) or "kept"
    return f"| {' '.join(words)} | {verdict.end} | {verdict.named} | {resumed} | {verdict.seconds:.0f} | {promise} |\n"


if __name__ == "__main__":
    projects = dict(zip(FRAMEWORKS, map(Path, sys.argv[1:]), strict=True))
    with tempfile.TemporaryDirectory() as folder:
        PAGE.write_text(page(run_all(projects, CELLS, Path(folder))), encoding="utf-8")

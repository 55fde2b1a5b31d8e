"""Write docs/faults.md from a run of all cells of the matrix.

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
# How jobs handle faults

`nox -s faults` generates this page. {kept} of {count} simulated cases meet the guarantee. Each case is a job
of 60 steps that saves a checkpoint every {interval} steps. [`--fault`](../launcher/docs/rehearse.md) simulates a
fault in one replica. If the job fails, it runs again without the fault.

The guarantee has four parts:

- No job hangs. A job counts as hanging if it runs for {deadline} s.
- No job fails silently.
- The first lines after the end of the job name the faulty replica, within {named_in} s of the fault.
- The next run resumes from the last checkpoint.

Some faults are changes of the project's code in one replica (`tests/matrix/changes.py`):

- `hangs-...` makes the process hang in a function.
- `another-...` and `a-sample-less` would not stop the job, but would change its result.

There is no case for a TensorFlow chief that hangs while it writes a checkpoint, because the other replicas would wait
for a day.

Tests of the trainer cover faults that `--fault` can't simulate:

- NaN and infinite values (`test_nonfinite.py`)
- two jobs with the same output folder (`test_lease.py`)
- missing, changed or damaged shards (`test_fingerprint.py`, `test_damage.py`)
- full or read-only folders (`test_writable.py`, `test_lost_reports.py`)
- twenty kills at random steps (`test_random_kills.py`)

The tables have these columns:

- *Named* is the replica in the line `Job failed: ...` or in the sentence after this line.
- *Resumed* is the step from which the job continued, after a restart or in the next run.
- *Seconds* is the duration of the run with the fault. Two cases ran simultaneously on shared cores.
"""
TABLE = """
## {framework}, {strategy}

| Fault | Result | Named | Resumed | Seconds | Guarantee |
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

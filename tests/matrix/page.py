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

`nox -s faults` generates this page. In {kept} of {count} test cases, the job meets the guarantee despite the fault.
Each test case is a job that trains for 60 steps and saves a checkpoint every {interval} steps. The
[`--fault`](../launcher/docs/rehearse.md) flag simulates a fault in one replica. If the job fails, the test runs it
again without the fault.

The guarantee consists of four rules:

- No job hangs. If a job is still running after {deadline} s, the test treats it as hung.
- No job fails silently.
- The launcher names the faulty replica within {named_in} s of the fault. The name appears in the first lines that
  the launcher prints after the job ends.
- The next run resumes from the latest checkpoint.

Some faults change the project's code on one replica (`tests/matrix/changes.py`):

- `hangs-...` makes one of the replica's processes hang in a function.
- `another-...` and `a-sample-less` change the replica's data or state. Without a check in the trainer, a job with such
  a fault would continue, but its result would be wrong.

The tests don't make a TensorFlow chief hang while it writes a checkpoint, because the other replicas would wait for
a day.

The trainer's tests cover faults that `--fault` can't simulate:

- NaN and infinite values (`test_nonfinite.py`)
- two jobs with the same output folder (`test_lease.py`)
- missing, changed, or damaged shards (`test_fingerprint.py`, `test_damage.py`)
- full or read-only folders (`test_writable.py`, `test_lost_reports.py`)
- twenty kills at random steps (`test_random_kills.py`)

The tables have these columns:

- *Named* is the replica that appears in the line `Job failed: ...` or in the sentence after it.
- *Resumed* is the step from which the job resumed after a restart or in the next run.
- *Next step, s* is the number of seconds from the fault to the next report of a step. Only `elastic` has this column,
  because its replicas go on without a lost one. In these test cases, no step is repeated, and only lost replicas
  restart.
- *Seconds* is the duration of the run with the fault. Two test cases ran at the same time on shared CPU cores.
"""
TABLE = """
## {framework}, {strategy}

| Fault | Result | Named | {column} | Seconds | Guarantee |
|---|---|---|---:|---:|---|
"""


def page(verdicts: Mapping[str, Verdict]) -> str:
    """Return the whole page."""
    kept = sum(not verdict.shortfalls for verdict in verdicts.values())
    head = HEAD.format(count=len(CELLS), kept=kept, interval=INTERVAL, deadline=DEADLINE, named_in=NAMED_IN)
    return head + "".join(_tables(verdicts))


def _tables(verdicts: Mapping[str, Verdict]) -> Iterator[str]:
    for (framework, strategy), cells in groupby(CELLS, lambda cell: (cell.framework, cell.strategy)):
        column = "Next step, s" if strategy == "elastic" else "Resumed"
        name = {"pytorch": "PyTorch"}.get(framework, "TensorFlow")
        yield TABLE.format(framework=name, strategy=strategy, column=column)
        yield from (_row(cell, verdicts[cell.id]) for cell in cells)


def _row(cell: Cell, verdict: Verdict) -> str:
    words = [f"`{word}`" for word in (*cell.faults, *cell.options)]
    number = verdict.pause if cell.goes_on else verdict.resumed
    resumed = "" if number < 0 else f"{number:.0f}"
    promise = "; ".join(verdict.shortfalls) or "kept"
    return f"| {' '.join(words)} | {verdict.end} | {verdict.named} | {resumed} | {verdict.seconds:.0f} | {promise} |\n"


if __name__ == "__main__":
    projects = dict(zip(FRAMEWORKS, map(Path, sys.argv[1:]), strict=True))
    with tempfile.TemporaryDirectory() as folder:
        PAGE.write_text(page(run_all(projects, CELLS, Path(folder))), encoding="utf-8")

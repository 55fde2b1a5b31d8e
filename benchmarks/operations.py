"""Trace a TensorFlow step in the trainer and in `fit`, and compare the time of each type of operation.

    python benchmarks/operations.py PROJECT [--page docs/speed.md] [--size base] [--rounds 3]

Run this benchmark in the Python environment of a TensorFlow project with tf_keras. The seconds are the sum over all
threads of the chief. The two processes have four threads on two cores, so the seconds include time in which a thread
waits for a core.
"""

import argparse
import re
import statistics
import tempfile
from collections import Counter
from pathlib import Path

from step import HERE, LOADS, OURS, run_job, turn, write
from tensorflow.tsl.profiler.protobuf.xplane_pb2 import XSpace

from trainer.reports.profile import OPERATION, times

FIRST, LAST = 5, 8  # the traced steps, counted from 1
COMMANDS = {
    "trainer": [*OURS, "--profile", f"{FIRST - 1}:{LAST}"],
    "`fit`": [str(HERE / "rivals/fit.py"), "--profile", f"{FIRST},{LAST}"],
}
# Matched with the path and kind of an operation, such as adam_w/update_3/Sqrt:Sqrt.
KINDS = {
    "AdamW": re.compile("adam_?w/update", re.IGNORECASE),
    "all-reduce": re.compile(":Collective"),
    "matrix products": re.compile(":(Batch)?MatMul|:Einsum"),
    "others": re.compile(""),
}


def main(project: Path, size: str, rounds: int) -> str:
    """Return the table rows for this model size."""
    traces: dict[str, list[Counter[str]]] = {name: [] for name in COMMANDS}
    for number in range(rounds):
        for name in turn(number, [*COMMANDS]):
            traces[name].append(measure(["python", *COMMANDS[name], *LOADS[size].flags(size)], project))
            print(f"{size}, round {number + 1}, {name}: {traces[name][-1]}", flush=True)
    return "".join(row(size, name, ours) for name, ours in traces.items())


def row(size: str, name: str, rounds: list[Counter[str]]) -> str:
    """Return one row of the table, with the median of all rounds for each type of operation."""
    seconds = (f"{statistics.median(found[kind] for found in rounds):.2f} s" for kind in KINDS)
    return f"| {' | '.join([f'{size}, {name}', *seconds])} |\n"


def measure(command: list[str], project: Path) -> Counter[str]:
    """Return the seconds for each type of operation in one step of the chief."""
    with tempfile.TemporaryDirectory() as folder:
        run_job(command, project, Path(folder))
        (trace,) = Path(folder).rglob("*.xplane.pb")
        space = XSpace.FromString(trace.read_bytes())
    found = Counter[str]()
    for name, (start, end) in times(space.planes, OPERATION):
        kind = next(kind for kind, names in KINDS.items() if names.search(name))
        found[kind] += (end - start) / (LAST - FIRST + 1)
    return found


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("project", type=Path)
    parser.add_argument("--page", type=Path, help="replace the rows in this page")
    parser.add_argument("--size", choices=LOADS, default="base")
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    rows = main(given.project.resolve(), given.size, given.rounds)
    print(rows)
    if given.page:
        write(given.page, "tensorflow", "operations", rows)

"""Trace a step of TensorFlow, in the trainer and in `fit`: seconds of operations by kind, from a trace of each.

    python benchmarks/operations.py PROJECT [--page docs/speed.md] [--size base] [--rounds 3]

Run by the Python of a TensorFlow project that has tf_keras. Seconds are those of all threads of the chief: two
processes have four on two cores, so that they also contain waits for a core.
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

FIRST, LAST = 5, 8  # the steps that are traced, counted from 1
COMMANDS = {
    "trainer": [*OURS, "--profile", f"{FIRST - 1}:{LAST}"],
    "`fit`": [str(HERE / "rivals/fit.py"), "--profile", f"{FIRST},{LAST}"],
}
# By path and kind of an operation, such as adam_w/update_3/Sqrt:Sqrt.
KINDS = {
    "AdamW": re.compile("adam_?w/update", re.IGNORECASE),
    "all-reduce": re.compile(":Collective"),
    "matrix products": re.compile(":(Batch)?MatMul|:Einsum"),
    "others": re.compile(""),
}


def main(project: Path, size: str, rounds: int) -> str:
    """The rows of this size."""
    traces: dict[str, list[Counter[str]]] = {name: [] for name in COMMANDS}
    for number in range(rounds):
        for name in turn(number, [*COMMANDS]):
            traces[name].append(measure(["python", *COMMANDS[name], *LOADS[size].flags(size)], project))
            print(f"{size}, round {number + 1}, {name}: {traces[name][-1]}", flush=True)
    return "".join(row(size, name, ours) for name, ours in traces.items())


def row(size: str, name: str, rounds: list[Counter[str]]) -> str:
    """One line of the table: of each kind the median of the rounds."""
    seconds = (f"{statistics.median(found[kind] for found in rounds):.2f} s" for kind in KINDS)
    return f"| {' | '.join([f'{size}, {name}', *seconds])} |\n"


def measure(command: list[str], project: Path) -> Counter[str]:
    """Seconds of each kind in one step of the chief."""
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
    parser.add_argument("--page", type=Path, help="rewrite the rows of this page")
    parser.add_argument("--size", choices=LOADS, default="base")
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    rows = main(given.project.resolve(), given.size, given.rounds)
    print(rows)
    if given.page:
        write(given.page, "tensorflow", "operations", rows)

"""Compare the planner's formulas in plan/allreduce_cost.py with measurements on a network.

    python benchmarks/network/measure.py
    python benchmarks/network/measure.py --machines 3 --reducers 2 4 --mbit 200 --without-ring
    python benchmarks/network/measure.py --page launcher/docs/planner-proof.md

This benchmark isn't part of generated projects. The benchmark emulates hosts on one Linux machine. In these hosts, a
ring (torch.distributed with gloo) and reducers (exchange.py) sum vectors through rate-limited network cards. The
benchmark requires numpy, torch for the ring, matplotlib for the page, `ip` and `tc`, and root permissions or user
namespaces. Don't run other programs on the machine during the measurement.
"""

import argparse
import importlib
import itertools
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

import hosts
import page
from cell import Cell

HERE = Path(__file__).resolve().parent
# Import only this file, because its package needs Google's clients. Type checkers can't find it by name.
sys.path.append(str(HERE.parents[1] / "launcher" / "vertex_launch" / "plan"))
allreduce_cost = importlib.import_module("allreduce_cost")


def main(arguments: argparse.Namespace) -> None:
    if arguments.page:
        page.around(arguments.page)  # reports an error in the page before the measurements
    cells = list(of(arguments))
    try:
        environment = os.environ | {"PATH": hosts.searched(os.environ.get("PATH", ""))}
        way = hosts.way(environment)
    except OSError as error:
        raise SystemExit(f"error: {error}") from None
    rows = []
    for number, cell in enumerate(cells, start=1):
        rows.append(measure(cell, [*way, sys.executable, str(HERE / "cell.py")], environment))
        print(f"{number}/{len(cells)} {page.line(rows[-1])}", file=sys.stderr, flush=True)
    print(page.table(rows))
    if arguments.page:
        page.write(arguments.page, rows)
    if sentences := page.too_far(rows):
        raise SystemExit("\n".join(sentences))


def of(arguments: argparse.Namespace) -> Iterator[Cell]:
    """Yield the cells that the arguments request."""
    reducers = arguments.reducers if arguments.without_ring else [0, *arguments.reducers]
    for mbit, machines, count in itertools.product(arguments.mbit, arguments.machines, reducers):
        yield Cell(machines, count, mbit, arguments.mib, arguments.repetitions)


def measure(cell: Cell, command: Sequence[str], environment: dict[str, str]) -> page.Row:
    """Measure a cell in a separate network, which exists as long as its process. Raises SystemExit if this fails."""
    sent, seconds = predict(cell)
    limit = 60 + 5 * cell.repetitions * seconds
    try:
        done = subprocess.run(
            [*command, json.dumps(asdict(cell))], env=environment, stdout=subprocess.PIPE, timeout=limit, check=True
        )
    except subprocess.TimeoutExpired:
        raise SystemExit(f"error: {cell}: the measurement didn't finish within {limit:.0f} s") from None
    except subprocess.CalledProcessError:
        raise SystemExit(f"error: {cell}: the measurement failed; see the error above") from None
    # In the first repetition, TCP adapts to the rate of the cards; a trainer also does this only once.
    counted = json.loads(done.stdout)[1:]
    found = (statistics.median(seen[name] for seen in counted) for name in ("sent", "seconds"))
    return page.Row(cell, page.Pair(next(found), sent), page.Pair(next(found), seconds))


def predict(cell: Cell) -> tuple[float, float]:
    """Return the bytes per machine and the seconds that the planner predicts for machines with one GPU each."""
    gbps = cell.mbit / 1000
    machines = allreduce_cost.Machines(cell.machines, 1, gbps)
    if cell.reducers:
        found = allreduce_cost.by_reducers(cell.size, machines, cell.reducers, gbps, hosts.MTU)
    else:
        found = allreduce_cost.ring(cell.size, machines, cell.machines, hosts.MTU)
    return float(found.bytes), float(found.seconds)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--machines", type=int, nargs="+", default=[2, 3, 4, 5, 6], help="numbers of machines that sum vectors"
    )
    parser.add_argument("--reducers", type=int, nargs="+", default=[1, 2, 3, 4, 5, 6])
    parser.add_argument(
        "--mbit", type=int, nargs="+", default=[100, 200], help="Mbit/s of every network card in each direction"
    )
    parser.add_argument("--mib", type=int, default=8, help="MiB of one vector")
    parser.add_argument(
        "--repetitions", type=int, default=6, help="repetitions of each cell, including the first, which isn't counted"
    )
    parser.add_argument("--without-ring", action="store_true", help="measure only reducers; this doesn't require torch")
    parser.add_argument("--page", type=Path, help="replace the table in this page, and the chart in the same folder")
    arguments = parser.parse_args()
    if (
        min(*arguments.machines, arguments.repetitions) < 2
        or min(*arguments.reducers, *arguments.mbit, arguments.mib) < 1
    ):
        parser.error("--machines and --repetitions must be at least 2; all other numbers must be at least 1")
    return arguments


if __name__ == "__main__":
    main(parse())

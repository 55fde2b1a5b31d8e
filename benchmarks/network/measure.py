"""Whether the planner's formulas hold on a network: measurements against plan/allreduce_cost.py.

    python benchmarks/network/measure.py
    python benchmarks/network/measure.py --machines 3 --reducers 2 4 --mbit 200 --without-ring
    python benchmarks/network/measure.py --page launcher/docs/planner-proof.md

A measuring instrument only: nothing of it is part of the template. It emulates hosts on one Linux machine, in which a
ring (torch.distributed with gloo) and reducers (exchange.py) sum real vectors through network cards of limited rate.
Needs numpy, torch for the ring and matplotlib for the page; `ip` and `tc`; and root or user namespaces. Leave the
machine idle meanwhile.
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
# The file alone, as its package needs Google's clients; and not by name, as type checkers cannot follow there.
sys.path.append(str(HERE.parents[1] / "launcher" / "vertex_launch" / "plan"))
allreduce_cost = importlib.import_module("allreduce_cost")


def main(arguments: argparse.Namespace) -> None:
    if arguments.page:
        page.around(arguments.page)  # a fault of the page shows now, not after all has been measured
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
    """The cells that were asked for."""
    reducers = arguments.reducers if arguments.without_ring else [0, *arguments.reducers]
    for mbit, machines, count in itertools.product(arguments.mbit, arguments.machines, reducers):
        yield Cell(machines, count, mbit, arguments.mib, arguments.repetitions)


def measure(cell: Cell, command: Sequence[str], environment: dict[str, str]) -> page.Row:
    """A cell in a network of its own, which vanishes with the process; ends in a sentence when nothing was measured."""
    sent, seconds = predict(cell)
    limit = 60 + 5 * cell.repetitions * seconds
    try:
        done = subprocess.run(
            [*command, json.dumps(asdict(cell))], env=environment, stdout=subprocess.PIPE, timeout=limit, check=True
        )
    except subprocess.TimeoutExpired:
        raise SystemExit(f"error: {cell}: not measured within {limit:.0f} s") from None
    except subprocess.CalledProcessError:
        raise SystemExit(f"error: {cell}: not measured, for the reason above") from None
    # In the first repetition connections find out how fast they may send; a trainer does that once, too.
    counted = json.loads(done.stdout)[1:]
    found = (statistics.median(seen[name] for seen in counted) for name in ("sent", "seconds"))
    return page.Row(cell, page.Pair(next(found), sent), page.Pair(next(found), seconds))


def predict(cell: Cell) -> tuple[float, float]:
    """Bytes that a machine sends, and seconds, as the planner has them for machines of one GPU each."""
    gbps = cell.mbit / 1000
    machines = allreduce_cost.Machines(cell.machines, 1, gbps)
    if cell.reducers:
        found = allreduce_cost.by_reducers(cell.size, machines, cell.reducers, gbps, hosts.MTU)
    else:
        found = allreduce_cost.ring(cell.size, machines, cell.machines, hosts.MTU)
    return float(found.bytes), float(found.seconds)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--machines", type=int, nargs="+", default=[2, 3, 4, 5, 6], help="that sum")
    parser.add_argument("--reducers", type=int, nargs="+", default=[1, 2, 3, 4, 5, 6])
    parser.add_argument(
        "--mbit", type=int, nargs="+", default=[100, 200], help="Mbit/s of every network card, each way"
    )
    parser.add_argument("--mib", type=int, default=8, help="MiB of one vector")
    parser.add_argument("--repetitions", type=int, default=6, help="of each cell; the first is not counted")
    parser.add_argument("--without-ring", action="store_true", help="reducers only, which need no torch")
    parser.add_argument("--page", type=Path, help="rewrite the table of this page, and the chart beside it")
    arguments = parser.parse_args()
    if (
        min(*arguments.machines, arguments.repetitions) < 2
        or min(*arguments.reducers, *arguments.mbit, arguments.mib) < 1
    ):
        parser.error("at least 2 machines and repetitions, and 1 of all others")
    return arguments


if __name__ == "__main__":
    main(parse())

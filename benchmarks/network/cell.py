"""Measure one cell: create a network, repeat an all-reduce of the network's hosts, and print the measurements.

    python cell.py CELL_AS_JSON

measure.py runs this program as the first process of a namespace (see hosts.py). The output is JSON.
"""

import json
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

import hosts

HERE = Path(__file__).parent
BYTES = 4  # size of a float32
# By default, gloo uses the card of the machine's own name, and PyTorch warns that addresses have no names.
VARIABLES = (f"GLOO_SOCKET_IFNAME={hosts.CARD}", "TORCH_CPP_LOG_LEVEL=ERROR")

Process = subprocess.Popen[str]


@dataclass(frozen=True)
class Cell:
    """One measurement of machines that sum vectors with reducers or, without reducers, in a ring."""

    machines: int
    reducers: int
    mbit: int  # rate of each network card in each direction
    mib: int  # size of one vector
    repetitions: int  # including the first

    def __str__(self) -> str:
        return f"{self.mbit} Mbit/s, {self.machines} machines, {self.way}"

    @property
    def way(self) -> str:
        """The name of the method that sums the gradients."""
        return f"{self.reducers} reducer{'s' * (self.reducers > 1)}" if self.reducers else "ring"

    @property
    def size(self) -> int:
        """The size of one vector in bytes."""
        return self.mib * 2**20


@dataclass(frozen=True)
class Seen:
    """The duration in seconds and the bytes of one repetition."""

    seconds: float  # from the start of the first worker to the end of the last
    sent: float  # bytes that the busiest worker sent


def measure(cell: Cell) -> list[Seen]:
    """Measure a cell and return all repetitions."""
    places = hosts.connect(cell.machines + cell.reducers, cell.mbit)
    workers = start_ring(cell, places) if not cell.reducers else start_exchange(cell, places)
    names = [place.name for place in places[: cell.machines]]
    seen = [repeat(workers, names) for _ in range(cell.repetitions)]
    for worker in workers:
        worker.wait()
    return seen


def start_ring(cell: Cell, places: list[hosts.Host]) -> list[Process]:
    return [
        start(place, "ring.py", rank, cell.machines, cell.size // BYTES, cell.repetitions, places[0].address)
        for rank, place in enumerate(places)
    ]


def start_exchange(cell: Cell, places: list[hosts.Host]) -> list[Process]:
    """Start the reducers, then the workers, and return the workers."""
    of_workers, of_reducers = places[: cell.machines], places[cell.machines :]
    shape = (cell.machines, cell.size // BYTES, cell.repetitions)
    reducers = [
        start(place, "exchange.py", "reducer", number, cell.reducers, *shape)
        for number, place in enumerate(of_reducers)
    ]
    for reducer in reducers:
        line(reducer)
    addresses = [place.address for place in of_reducers]
    return [start(place, "exchange.py", "worker", rank, *shape, *addresses) for rank, place in enumerate(of_workers)]


def start(place: hosts.Host, program: str, *arguments: object) -> Process:
    command = hosts.inside(place, "env", *VARIABLES, sys.executable, str(HERE / program), *map(str, arguments))
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def repeat(workers: list[Process], names: list[str]) -> Seen:
    """Run one repetition, which all workers start simultaneously. Raises RuntimeError if a sum is wrong."""
    for worker in workers:
        line(worker)
    before = hosts.sent()
    tell(workers)
    began, ended = zip(*(json.loads(line(worker)) for worker in workers), strict=True)
    after = hosts.sent()
    tell(workers)
    verdicts = [json.loads(line(worker)) for worker in workers]
    if not all(verdicts):
        raise RuntimeError("a worker has a wrong sum")
    return Seen(max(ended) - min(began), max(after[name] - before[name] for name in names))


def tell(workers: list[Process]) -> None:
    """Write a line to every worker, so that all workers continue."""
    for worker in workers:
        assert worker.stdin
        worker.stdin.write("\n")
        worker.stdin.flush()


def line(process: Process) -> str:
    """Return the next output line of a process. Raises RuntimeError if the process has exited."""
    assert process.stdout
    if not (text := process.stdout.readline()):
        raise RuntimeError("a process exited early")
    return text


if __name__ == "__main__":
    print(json.dumps([asdict(seen) for seen in measure(Cell(**json.loads(sys.argv[1])))]))

"""Measure how many samples per second the trainer, bare Grain, and PyTorch's DataLoader read.

    python benchmarks/data.py PROJECT [--seconds 5] [--rounds 3]

Run this benchmark with the project's own Python on Linux. All readers read the same shards in random order, and use the
project's own `decode` and `collate` for batches of 32 samples. In an image project, the samples are photographs of 224
x 224 pixels and images of 8 x 8 pixels. In a text project, they are texts of 256 bytes. Each round measures all readers
in turn, first on one core and then on two.
"""

import argparse
import importlib
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from step import spread

BATCH = 32
COUNT = 2048  # samples; Grain takes longer to shuffle fewer
STEPS = 10**6  # more than any round reads
TEXT = 256  # bytes

Reader = Callable[[Path], Iterator[Any]]


def main(seconds: float, rounds: int) -> None:
    cores = sorted(os.sched_getaffinity(0))[:2]
    one_core: dict[str, Reader] = {"trainer": trainer(0), "bare Grain": bare_grain, "DataLoader": data_loader(0)}
    two_cores = {
        "trainer": trainer(0),
        "trainer, --data-processes 2": trainer(2),
        "bare Grain": bare_grain,
        "DataLoader, 2 workers": data_loader(2),
    }
    for kind, samples in kinds().items():
        with tempfile.TemporaryDirectory() as folder:
            importlib.import_module("trainer.samples.shards").write(samples, Path(folder), "train")
            for count, readers in ((1, one_core), (2, two_cores)):
                os.sched_setaffinity(0, cores[:count])
                compare(f"{kind}, {count} core{'s' * (count > 1)}", readers, Path(folder), seconds, rounds)


def kinds() -> dict[str, Iterator[Any]]:
    """Return the samples that a project can read, keyed by a description."""
    if "text" in importlib.import_module("trainer.data").Sample._fields:
        return {f"{TEXT} bytes": drawn(TEXT)}
    return {"224 x 224 pixels": drawn(224, 224, 3), "8 x 8 pixels": drawn(8, 8, 1)}


def drawn(*shape: int) -> Iterator[Any]:
    """Yield random samples of this shape. An image also has a label."""
    data, numpy = importlib.import_module("trainer.data"), importlib.import_module("numpy")
    draw = numpy.random.default_rng(0)
    for number in range(COUNT):
        array = draw.integers(0, 256, shape, numpy.uint8)
        yield data.Sample(array) if len(shape) == 1 else data.Sample(array, number % 10)


def compare(title: str, readers: dict[str, Reader], folder: Path, seconds: float, rounds: int) -> None:
    """Print the rate of each reader, and its ratio to the trainer's rate."""
    rates: dict[str, list[float]] = {name: [] for name in readers}
    for _ in range(rounds):
        for name, read in readers.items():
            rates[name].append(rate(read(folder), seconds))
    for name, found in rates.items():
        ratios = [ours / theirs for ours, theirs in zip(rates["trainer"], found, strict=True)]
        print(f"{title}: {name}: {spread(found, ',.0f')} samples per second, trainer / this: {spread(ratios, '.2f')}")


def rate(batches: Iterator[Any], seconds: float) -> float:
    """Return the number of samples per second, excluding the first batches."""
    for _ in islice(batches, 10):
        pass
    began, count = time.perf_counter(), 0
    while time.perf_counter() - began < seconds:
        next(batches)
        count += BATCH
    return count / (time.perf_counter() - began)


def flags(processes: int = 0) -> Any:
    config = importlib.import_module("trainer.config")
    return config.Config(data="shards", global_batch=BATCH, steps=STEPS, data_processes=processes)


def trainer(processes: int) -> Reader:
    batches, shards = (importlib.import_module(f"trainer.samples.{name}") for name in ("batches", "shards"))
    whole = {"start": 0, "rank": 0, "world_size": 1}
    return lambda folder: batches.train_batches(shards.Dataset(folder, "train"), flags(processes), **whole)


def records_of(folder: Path) -> Any:
    sources = importlib.import_module("grain").sources
    return sources.ArrayRecordDataSource(sorted(map(str, folder.glob("train-*.array_record"))))


def collated(records: Any) -> Any:
    data = importlib.import_module("trainer.data")
    return data.collate([data.decode(record) for record in records], flags())


def bare_grain(folder: Path) -> Iterator[Any]:
    grain = importlib.import_module("grain")
    records = grain.MapDataset.source(records_of(folder)).shuffle(seed=0).repeat()
    return iter(records.batch(BATCH, batch_fn=collated).to_iter_dataset(grain.ReadOptions(4, 8)))


def tensors(records: Any) -> tuple[Any, ...]:
    """Return a batch as tensors, which workers of a DataLoader pass in shared memory."""
    torch = importlib.import_module("torch")
    return tuple(map(torch.from_numpy, collated(records)))


def data_loader(workers: int) -> Reader:
    def read(folder: Path) -> Iterator[Any]:
        data = importlib.import_module("torch.utils.data")
        options: dict[str, Any] = {"num_workers": workers, "persistent_workers": workers > 0, "drop_last": True}
        # A forked worker would lack the threads with which ArrayRecord reads.
        options |= {"multiprocessing_context": "spawn"} if workers else {}
        loader = data.DataLoader(records_of(folder), BATCH, shuffle=True, collate_fn=tensors, **options)
        while True:
            yield from loader

    return read


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("project", type=Path)
    parser.add_argument("--seconds", type=float, default=5)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    sys.path.insert(0, str(given.project.resolve()))
    main(given.seconds, given.rounds)
    sys.stdout.flush()
    os._exit(0)  # the workers of a DataLoader would abort, because ArrayRecord still reads in threads of theirs

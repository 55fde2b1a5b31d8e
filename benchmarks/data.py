"""Measure how many samples per second one core reads with the trainer, bare Grain and PyTorch's DataLoader.

    python benchmarks/data.py PROJECT [--seconds 5] [--rounds 3]

Run this benchmark with the project's own Python on Linux. Each reader uses one core, reads the same images of 224 x 224
pixels in random order and creates batches of 32 images. The last line of the output compares the trainer's threads with
the trainer's processes on all cores.
"""

import argparse
import importlib
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from gpu import write_images
from step import spread

MODULES = "samples.batches", "samples.shards", "config"
BATCH = 32
STEPS = 10**6  # more than any round reads


def main(project: Path, seconds: float, rounds: int) -> None:
    cores = os.sched_getaffinity(0)
    with tempfile.TemporaryDirectory() as folder:
        write_images(project, Path(folder))
        ways = {"trainer": trainer(0), "bare Grain": bare_grain, "DataLoader": data_loader}
        os.sched_setaffinity(0, {min(cores)})
        one_core = {name: [rate(way(Path(folder)), seconds) for _ in range(rounds)] for name, way in ways.items()}
        for name, rates in one_core.items():
            print(f"{name}: {spread(rates, '.0f')} images per second on one core")
        os.sched_setaffinity(0, cores)
        threads, processes = (
            [rate(trainer(count)(Path(folder)), seconds) for _ in range(rounds)] for count in (0, len(cores))
        )
        told, others = spread(threads, ".0f"), spread(processes, ".0f")
        print(f"trainer on {len(cores)} cores: {told} with threads, {others} with one process per core")


def rate(batches: Iterator[Any], seconds: float) -> float:
    """Return the number of samples per second, excluding the first batches."""
    for _ in islice(batches, 10):
        pass
    began, count = time.perf_counter(), 0
    while time.perf_counter() - began < seconds:
        next(batches)
        count += BATCH
    return count / (time.perf_counter() - began)


def trainer(processes: int) -> Callable[[Path], Iterator[Any]]:
    batches, shards, config = (importlib.import_module(f"trainer.{name}") for name in MODULES)
    flags = config.Config(data="shards", global_batch=BATCH, steps=STEPS, data_processes=processes)
    return lambda folder: batches.train_batches(shards.Dataset(folder, "train"), flags, start=0, rank=0, world_size=1)


def collated(records: Any) -> tuple[Any, Any]:
    """Return the pixels and labels of these records as arrays."""
    numpy, data = importlib.import_module("numpy"), importlib.import_module("trainer.data")
    samples = [data.decode(record) for record in records]
    images = numpy.stack([sample.image for sample in samples]).astype(numpy.float32) / numpy.float32(255)
    return images, numpy.array([sample.label for sample in samples])


def records_of(folder: Path) -> Any:
    sources = importlib.import_module("grain").sources
    return sources.ArrayRecordDataSource(sorted(map(str, folder.glob("train-*.array_record"))))


def bare_grain(folder: Path) -> Iterator[Any]:
    grain = importlib.import_module("grain")
    records = grain.MapDataset.source(records_of(folder)).shuffle(seed=0).repeat()
    return iter(records.batch(BATCH, batch_fn=collated).to_iter_dataset(grain.ReadOptions(4, 8)))


def data_loader(folder: Path) -> Iterator[Any]:
    data = importlib.import_module("torch.utils.data")
    loader = data.DataLoader(records_of(folder), BATCH, shuffle=True, collate_fn=collated, drop_last=True)
    while True:
        yield from loader


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("project", type=Path)
    parser.add_argument("--seconds", type=float, default=5)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    main(given.project.resolve(), given.seconds, given.rounds)

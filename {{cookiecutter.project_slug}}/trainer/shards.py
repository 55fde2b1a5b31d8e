"""Shards of samples, read in one global order by any number of processes.

A data set is a folder of ArrayRecord shards, `train-*.array_record` and `heldout-*.array_record`. The
order of the training samples follows from the seed alone; of every global batch, process r of w takes
samples r, r + w, r + 2w, ... So the run is the same run on 1 machine or on 100, and starting at step k
costs nothing: reading is random access.

What a sample is stands in trainer/data.py. Write its example data set, and with `write` your own; read all of a folder:

    python -m trainer.shards NAME --to DIR
    python -m trainer.shards verify DIR
"""

import contextlib
import errno
import gc
import signal
import sys
import tempfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property, partial
from itertools import accumulate, chain, islice, pairwise
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar

import grain
import numpy as np
import tyro
from array_record.python.array_record_module import ArrayRecordWriter
from grain.multiprocessing import MultiprocessingOptions

from trainer import data
from trainer.checkpoints.commit_marker import checksum, read_json, write_json
from trainer.config import Config, of_model
from trainer.data import EXAMPLES, Batch, Sample
from trainer.fingerprint import Fingerprint, require
from trainer.goodput import IdleTimer
from trainer.job import Job
from trainer.vertex.errors import TrainerError
from trainer.vertex.log import say
from trainer.vertex.storage import Storage

Split = Literal["train", "heldout"]
Part = TypeVar("Part")
READERS = 64  # shards that are opened at once, where each asks a bucket


class Masked(NamedTuple):
    """A batch whose end may be filled up; `mask` is 1 for a sample and 0 for what fills up, float32, shape (n,)."""

    batch: Batch
    mask: np.ndarray[tuple[int], np.dtype[np.float32]]


def write(samples: Iterable[Sample], folder: Path, split: Split, shard_count: int = 4) -> None:
    """Deal the samples out to `shard_count` files, like cards, and keep the checksum of each file beside them."""
    folder.mkdir(parents=True, exist_ok=True)
    names = [f"{split}-{i:05d}-of-{shard_count:05d}.array_record" for i in range(shard_count)]
    # Random access is fast only with one record per group.
    writers = [ArrayRecordWriter(str(folder / name), "group_size:1") for name in names]
    for i, sample in enumerate(samples):
        writers[i % shard_count].write(data.encode(sample))
    for writer in writers:
        writer.close()
    write_json(folder / f"{split}-checksums.json", {name: checksum(folder / name) for name in names})


def write_example(name: str, folder: Path) -> None:
    samples = EXAMPLES[name]()
    write(samples["train"], folder, "train")
    write(samples["heldout"], folder, "heldout")


@contextlib.contextmanager
def at(address: str, storage: Storage) -> Iterator[Path]:
    """Open the folder of shards that `--data` means; an example data set is written for this run only.

    Raises:
        TrainerError: the folder is not on this machine.
    """
    if address in EXAMPLES:
        with tempfile.TemporaryDirectory() as aside:
            write_example(address, Path(aside))
            yield Path(aside)
    elif (path := storage.path(address)).is_dir():
        yield path
    else:
        cure = "write shards there with trainer.shards.write, or copy some"
        raise TrainerError(f"--data {address}: there is no folder {path}; {cure}")


def example(config: Config, storage: Storage) -> Batch:
    """Return a batch of one held-out sample, for its shapes and types; one held-out shard is enough."""
    with at(config.data, storage) as folder:
        return Dataset(folder, "heldout").batch([0], config)


class Dataset:
    """One split of a folder of shards, by index."""

    def __init__(self, folder: Path, split: Split) -> None:
        paths = sorted(folder.glob(f"{split}-*.array_record"))
        if not paths:
            raise TrainerError(f"{folder}: no file {split}-*.array_record; write one with trainer.shards.write")
        with ThreadPoolExecutor(READERS) as readers:
            counts = [*readers.map(_record_count, paths)]
        self._folder, self._split = folder, split
        self.shards = {path.name: (path.stat().st_size, count) for path, count in zip(paths, counts, strict=True)}
        if sum(counts) == 0:
            raise TrainerError(f"{folder}: the {split} shards hold no sample")
        # With their counts, the source opens no shard before it reads.
        spans = [f"{path}[0:{count}]" for path, count in zip(paths, counts, strict=True)]
        self._source = grain.sources.ArrayRecordDataSource(spans)

    def __len__(self) -> int:
        return len(self._source)

    def samples(self, indices: Iterable[int]) -> list[Sample]:
        places = [*indices]
        return [self._decoded(*pair) for pair in zip(places, self._records(places), strict=True)]

    def _decoded(self, index: int, record: bytes) -> Sample:
        try:
            return data.decode(record)
        except Exception:
            shard, number = self._place(index)
            say(f"{self._folder / shard}: decode() of trainer/data.py fails for record {number}", "ERROR")
            raise

    def described(self) -> dict[str, tuple[int, ...]]:
        """Return bytes and records of each shard by its name, a checksum of its first and last record, and the kept."""
        counts = [count for _, count in self.shards.values()]
        places = [[end - count, end - 1] * bool(count) for count, end in zip(counts, accumulate(counts), strict=True)]
        records = iter(self._records([*chain.from_iterable(places)]))
        ends = [zlib.crc32(b"".join(islice(records, len(pair)))) for pair in places]
        kept = _checksums(self._folder, self._split)
        rows = zip(self.shards.items(), ends, strict=True)
        return {name: (*size, end, *kept.get(name, [])) for (name, size), end in rows}

    def _records(self, indices: list[int]) -> list[bytes]:
        try:  # one call: the source reads in parallel, which matters where each read asks a bucket
            records: list[bytes] = self._source.__getitems__(indices)
        except (RuntimeError, ValueError) as error:
            raise self._damaged(indices, error) from None
        return records

    def _damaged(self, indices: list[int], error: Exception) -> Exception:
        """Return an error that names the first of these records that cannot be read by itself; else the given one."""
        for index in indices:
            try:
                self._source[index]
            except (RuntimeError, ValueError) as cause:
                shard, record = self._place(index)
                return TrainerError(f"{self._folder / shard}: {_damage(record, cause)}")
        return error

    def _place(self, index: int) -> tuple[str, int]:
        """Return the shard of a record, and its index there."""
        for shard, (_, count) in self.shards.items():
            if index < count:
                return shard, index
            index -= count
        raise IndexError(index)

    def batch(self, indices: Iterable[int], config: Config) -> Batch:
        """Return these samples, without augmentation."""
        return collated(self.samples(indices), config)

    def first(self, count: int, config: Config) -> Batch:
        """Return the first samples; from the beginning again, if there are fewer."""
        return self.batch((index % len(self) for index in range(count)), config)


class Data:
    """The data set of a job: batches for training, in one global order, and held out."""

    def __init__(self, job: Job) -> None:
        config = job.config
        self._config, self._clock = config, job.clock
        self.train, self.heldout = Dataset(job.shards, "train"), Dataset(job.shards, "heldout")

    @cached_property
    def fingerprint(self) -> Fingerprint:
        shards = self.train.described(), self.heldout.described()
        return Fingerprint(self._config.global_batch, self._config.seed, *shards, of_model(self._config))

    @cached_property
    def example(self) -> Batch:
        """A batch of one sample, for its shapes and types."""
        return self.heldout.batch([0], self._config)

    def training(self, start: int, rank: int, size: int, idle_timer: IdleTimer | None) -> Iterator[Batch]:
        """Yield one process's part of the global batch of each step from `start` on; the clock learns of each wait."""
        batches = train_batches(self.train, self._config, start=start, rank=rank, world_size=size)
        return self._clock.timed(batches, idle_timer)

    def evaluation(self, rank: int, size: int, micro_batches: int = 1) -> Iterator[Masked]:
        """Yield every held-out sample to exactly one of `size` processes, and as many equal batches to each of them.

        A batch is as large as one of the `micro_batches` into which a process divides its part of a global batch. At
        the end it is filled up with a sample that counts for nothing.
        """
        length = largest_part(self._config, size * micro_batches)
        block = length * size  # samples of all processes

        def part(number: int) -> Masked:
            indices = range(number * block + rank, min((number + 1) * block, len(self.heldout)), size)
            samples = self.heldout.samples(indices or [0])
            filled = samples + samples[:1] * (length - len(samples))
            mask = (np.arange(length) < len(indices)).astype(np.float32)
            return Masked(collated(filled, self._config), mask)

        return _ahead(part, range(-(-len(self.heldout) // block)))


def collated(samples: Sequence[Sample], config: Config) -> Batch:
    """Return a batch of all these samples: with fewer, each step would count others more than it should.

    Raises:
        TrainerError: `collate` has left some out, or made more of them.
    """
    batch = data.collate(samples, config)
    if wrong := next((name for name, array in batch._asdict().items() if len(array) != len(samples)), ""):
        count = f"{len(getattr(batch, wrong))} {wrong} of {len(samples)} samples"
        raise TrainerError(f"collate() of trainer/data.py makes {count}; it must keep each, in their order")
    return batch


def _record_count(path: Path) -> int:
    try:
        return len(grain.sources.ArrayRecordDataSource(str(path)))
    except RuntimeError:
        raise TrainerError(f"{path}: is not an ArrayRecord file, or was cut short; write it again") from None


def _damage(record: int, cause: Exception) -> str:
    reason = str(cause).partition("\n")[0].partition(";")[0]
    return f"record {record} is damaged ({reason}); write this shard again"


def _checksums(folder: Path, split: Split) -> dict[str, list[int]]:
    """Return the checksum of each shard that `write` has kept: none for those of an older version."""
    file = folder / f"{split}-checksums.json"
    try:
        return {name: [int(value)] for name, value in read_json(file).items()}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise TrainerError(f"{file}: cannot be read ({error}); copy it again, or remove it") from None


def _fault(shard: Path, kept: Sequence[int]) -> str:
    """Read all of a shard, and return what is wrong with it; empty if nothing is."""
    index = 0
    try:
        if kept and checksum(shard) != kept[0]:
            return f"{shard}: is not as it was written; copy it again, or write its set again"
        count, source = _record_count(shard), grain.sources.ArrayRecordDataSource(str(shard))
        for index in range(count):
            data.decode(source[index])
    except FileNotFoundError:
        return f"{shard}: is missing; copy it again"
    except TrainerError as error:
        return str(error)
    except Exception as error:  # of the team's decode(), too
        return f"{shard}: {_damage(index, error)}"
    return ""


def per_step(config: Config, example: Batch) -> dict[str, int]:
    """Return the counts of an optimizer step, for reports: {"samples": 96, "tokens": 6144}."""
    return {name: config.global_batch * count for name, count in {"samples": 1, **data.counts(config, example)}.items()}


def order(count: int, config: Config) -> Any:
    """The index of the sample at each place of the run, batch after batch: all of them, then all in another order."""
    return grain.MapDataset.range(count).shuffle(seed=config.seed).repeat()


def largest_part(config: Config, count: int) -> int:
    """Return the samples of the largest of so many parts of a global batch."""
    return -(-config.global_batch // count)


def require_samples(config: Config, world_size: int) -> None:
    """Raises TrainerError for a global batch that is smaller than the world."""
    if config.global_batch < world_size:
        raise TrainerError(
            f"--global-batch is {config.global_batch}, must be at least one sample per process ({world_size})"
        )


def train_batches(dataset: Dataset, config: Config, *, start: int, rank: int, world_size: int) -> Iterator[Batch]:
    """Yield this process's part of the global batch of each step from `start` on.

    Parts differ by at most one sample when the global batch does not divide evenly.

    Raises:
        TrainerError: the global batch is smaller than the world, or the data does not fit the flags.
    """
    require_samples(config, world_size)
    size = config.global_batch
    indices = order(len(dataset), config)

    def part(step: int) -> Batch:
        places = range(step * size + rank, (step + 1) * size, world_size)
        samples = dataset.samples(indices[place] for place in places)
        draws = (np.random.default_rng((config.seed, place)) for place in places)
        return collated([data.augment(*pair, config) for pair in zip(samples, draws, strict=True)], config)

    return _ahead(part, range(start, config.steps), config.data_processes)


def _ahead(part: Callable[[int], Part], numbers: range, processes: int = 0) -> Iterator[Part]:
    """Yield `part` of each number in turn; other threads, or processes, make it before it is asked for."""
    ahead = 2 if processes else 8  # in each of them, and all are in memory
    options = grain.ReadOptions(num_threads=4, prefetch_buffer_size=ahead)
    batches = grain.MapDataset.range(numbers.start, numbers.stop).map(part).to_iter_dataset(options)
    if not processes:
        return iter(batches)
    return _of_processes(batches.mp_prefetch(MultiprocessingOptions(num_workers=processes, per_worker_buffer_size=2)))


def _of_processes(dataset: grain.IterDataset[Part]) -> Iterator[Part]:
    """Batches that come through shared memory; a process that finds it full is ended by SIGBUS, and can say nothing."""
    batches = iter(dataset)
    try:
        yield from batches
    except (OSError, RuntimeError) as error:
        is_full = getattr(error, "errno", 0) == errno.ENOSPC or f"exit code -{signal.SIGBUS:d}." in str(error)
        if not is_full:
            raise
        cure = "lower --data-processes, or let threads make them (0), or give the container more (docker --shm-size)"
        raise TrainerError(f"/dev/shm has no room for the batches of --data-processes; {cure}") from None
    finally:
        batches.close()  # ends the processes
        del batches
        gc.collect()  # frees their semaphores, which grain holds in reference cycles; os._exit would leak them


def micro_batches(batch: Batch, count: int) -> list[Batch]:
    """Return at most `count` consecutive, nearly equal parts of a batch, none of them empty."""
    size = batch.inputs.shape[0]
    count = min(count, size)
    bounds = [-(-size * i // count) for i in range(count + 1)]
    return [Batch(*(array[a:b] for array in batch)) for a, b in pairwise(bounds)]


def main(name: str, to: str) -> None:
    """Write this example data set as train and held-out shards.

    Args:
        to: Folder to write the shards to.
    """
    if "://" in to:
        sys.exit(f"--to {to}: must be a folder of this machine; copy it from there to the bucket")
    try:
        write_example(name, Path(to))
    except OSError as error:
        sys.exit(f"--to {to}: cannot be written ({error.strerror})")
    counts = ", ".join(f"{len(Dataset(Path(to), split))} {split}" for split in ("train", "heldout"))
    print(f"{counts} samples in {to}; train on them with --data {to}")


def verify(folder: tyro.conf.Positional[Path]) -> None:
    """Read all shards of a folder, and compare them with the checksums that were kept when they were written.

    Raises:
        TrainerError: shards are missing or damaged.
    """
    kept = _checksums(folder, "train") | _checksums(folder, "heldout")
    names = sorted({path.name for path in folder.glob("*.array_record")} | kept.keys())
    with ThreadPoolExecutor(READERS) as readers:
        faults = readers.map(lambda name: _fault(folder / name, kept.get(name, [])), names)
    if found := "\n".join(filter(None, faults)):
        raise TrainerError(found)
    train, heldout = Dataset(folder, "train"), Dataset(folder, "heldout")
    require(Fingerprint(0, 0, train.shards, heldout.shards), None, anyway=False, is_chief=True)
    bare = sum(name not in kept for name in names)
    seen = f"can be read; {bare} have no checksum" if bare else "as they were written"
    print(f"{len(names)} shards, {len(train) + len(heldout)} samples: {seen}")


if __name__ == "__main__":
    commands: dict[str, Callable[..., None]] = {name: partial(main, name) for name in EXAMPLES} | {"verify": verify}
    try:
        tyro.extras.subcommand_cli_from_dict(commands, prog="python -m trainer.shards")
    except TrainerError as error:
        sys.exit(str(error))

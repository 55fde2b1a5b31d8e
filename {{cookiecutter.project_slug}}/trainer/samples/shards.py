"""Reads and writes a dataset's shards: `train-*.array_record` and `heldout-*.array_record` in a folder.

trainer/data.py defines what a sample is.
"""

import contextlib
import random
import statistics
import tempfile
import time
import zlib
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import accumulate, chain, islice
from pathlib import Path
from typing import Literal

import grain
from array_record.python.array_record_module import ArrayRecordWriter

from trainer import data
from trainer.config import Config
from trainer.data import EXAMPLES, Batch, Sample
from trainer.vertex.errors import TrainerError
from trainer.vertex.log import say
from trainer.vertex.storage import Storage, checksum, read_json, write_json

Split = Literal["train", "heldout"]
READERS = 64  # shards to open in parallel, because each one may be a request to a bucket
TIMED_READS = 5
SLOW_READ = 1e-4  # seconds; a parallel read takes up to 3e-5 s per record longer than reads of cached records


def write(samples: Iterable[Sample], folder: Path, split: Split, shard_count: int = 4) -> None:
    """Distribute the samples round-robin across `shard_count` shard files.

    Store the files' checksums in the same folder.
    """
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
    """Yield the folder of shards that `--data` specifies. An example dataset is written to a temporary folder first.

    Raises:
        TrainerError: If the folder doesn't exist.
    """
    if address in EXAMPLES:
        with tempfile.TemporaryDirectory() as aside:
            write_example(address, Path(aside))
            yield Path(aside)
    elif (path := storage.path(address)).is_dir():
        yield path
    else:
        cure = "copy shards to this folder, or write shards with trainer.samples.shards.write"
        raise TrainerError(f"--data {address}: the folder {path} doesn't exist; {cure}")


def example(config: Config, storage: Storage) -> Batch:
    """Return a batch of one held-out sample, which shows the arrays' shapes and types.

    The folder needs only one held-out shard.
    """
    with at(config.data, storage) as folder:
        return Dataset(folder, "heldout").batch([0], config)


class Dataset:
    """One split of a dataset. Samples are read by index."""

    def __init__(self, folder: Path, split: Split) -> None:
        paths = sorted(folder.glob(f"{split}-*.array_record"))
        if not paths:
            raise TrainerError(
                f"{folder}: there are no {split}-*.array_record files; write shards with trainer.samples.shards.write"
            )
        with ThreadPoolExecutor(READERS) as readers:
            counts = [*readers.map(record_count, paths)]
        self._folder, self._split = folder, split
        self.shards = {path.name: (path.stat().st_size, count) for path, count in zip(paths, counts, strict=True)}
        if sum(counts) == 0:
            raise TrainerError(f"{folder}: the {split} shards contain no samples")
        # Because the paths contain the counts, the source opens a shard only to read from it.
        spans = [f"{path}[0:{count}]" for path, count in zip(paths, counts, strict=True)]
        self._source = grain.sources.ArrayRecordDataSource(spans)
        self._reads_in_parallel = self._read_seconds(next(filter(None, counts))) > SLOW_READ

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
            say(f"{self._folder / shard}: decode() in trainer/data.py fails for record {number}", "ERROR")
            raise

    def described(self) -> dict[str, tuple[int, ...]]:
        """Map each shard to its size in bytes, its record count, and a checksum of its first and last records.

        If a checksum of the whole shard is stored, it is the fourth value.
        """
        counts = [count for _, count in self.shards.values()]
        places = [[end - count, end - 1] * bool(count) for count, end in zip(counts, accumulate(counts), strict=True)]
        records = iter(self._records([*chain.from_iterable(places)]))
        ends = [zlib.crc32(b"".join(islice(records, len(pair)))) for pair in places]
        kept = checksums(self._folder, self._split)
        rows = zip(self.shards.items(), ends, strict=True)
        return {name: (*size, end, *kept.get(name, [])) for (name, size), end in rows}

    def _read_seconds(self, count: int) -> float:
        """Return the typical time to read one of the first `count` records, which are in one shard.

        In a bucket and on a network disk, each read is a request.
        """
        seconds = list[float]()
        with contextlib.suppress(RuntimeError, ValueError):  # a damaged record is reported when it is needed
            for index in random.Random().sample(range(count), min(count, TIMED_READS)):
                began = time.monotonic()
                self._source[index]
                seconds.append(time.monotonic() - began)
        return statistics.median(seconds or [0.0])

    def _records(self, indices: list[int]) -> list[bytes]:
        try:
            if self._reads_in_parallel:
                records: list[bytes] = self._source.__getitems__(indices)
            else:
                records = [self._source[index] for index in indices]
        except (RuntimeError, ValueError) as error:
            raise self._damaged(indices, error) from None
        return records

    def _damaged(self, indices: list[int], error: Exception) -> Exception:
        """Return an error for the first record that can't be read.

        If all records can be read, return the given error.
        """
        for index in indices:
            try:
                self._source[index]
            except (RuntimeError, ValueError) as cause:
                shard, record = self._place(index)
                return TrainerError(f"{self._folder / shard}: {damage(record, cause)}")
        return error

    def _place(self, index: int) -> tuple[str, int]:
        """Return the shard that contains a record, and the record's index in that shard."""
        for shard, (_, count) in self.shards.items():
            if index < count:
                return shard, index
            index -= count
        raise IndexError(index)

    def batch(self, indices: Iterable[int], config: Config) -> Batch:
        """Return a batch of these samples, without augmentation."""
        return collated(self.samples(indices), config)

    def first(self, count: int, config: Config) -> Batch:
        """Return a batch of the first `count` samples. If the dataset has fewer samples, repeat some of them."""
        return self.batch((index % len(self) for index in range(count)), config)


def collated(samples: Sequence[Sample], config: Config) -> Batch:
    """Return a batch of all these samples. If a sample were missing, the remaining ones would have too much weight.

    Raises:
        TrainerError: If `collate` drops or adds samples.
    """
    batch = data.collate(samples, config)
    if wrong := next((name for name, array in batch._asdict().items() if len(array) != len(samples)), ""):
        count = f"{len(getattr(batch, wrong))} {wrong} for {len(samples)} samples"
        raise TrainerError(f"collate() in trainer/data.py returns {count}; keep all samples in their original order")
    return batch


def record_count(path: Path) -> int:
    try:
        return len(grain.sources.ArrayRecordDataSource(str(path)))
    except RuntimeError:
        raise TrainerError(f"{path} isn't an ArrayRecord file, or is truncated; write the shard again") from None


def damage(record: int, cause: Exception) -> str:
    reason = str(cause).partition("\n")[0].partition(";")[0]
    return f"record {record} is damaged ({reason}); write this shard again"


def checksums(folder: Path, split: Split) -> dict[str, list[int]]:
    """Map each shard to a list that holds its checksum. If checksums aren't stored, return an empty dictionary."""
    file = folder / f"{split}-checksums.json"
    try:
        return {name: [int(value)] for name, value in read_json(file).items()}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise TrainerError(f"{file} can't be read ({error}); copy the file again, or remove the file") from None

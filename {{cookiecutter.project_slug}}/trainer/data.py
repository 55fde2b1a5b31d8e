"""Shards of samples, read in one global order by any number of processes.

A data set is a folder of ArrayRecord shards, `train-*.array_record` and `heldout-*.array_record`. The
order of the training samples follows from the seed alone; of every global batch, process r of w takes
samples r, r + w, r + 2w, ... So the run is the same run on 1 machine or on 100, and starting at step k
costs nothing: reading is random access.

Write the example data set, and with the same code your own:

    python -m trainer.data digits --to DIR
"""

import contextlib
import struct
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from importlib.metadata import distribution
from pathlib import Path
from typing import Literal, NamedTuple

import grain
import numpy as np
import tyro
from array_record.python.array_record_module import ArrayRecordWriter

from trainer.config import Config
from trainer.errors import TrainerError
from trainer.storage import Storage

Images = np.ndarray[tuple[int, int, int, int], np.dtype[np.float32]]
Labels = np.ndarray[tuple[int], np.dtype[np.int64]]
Split = Literal["train", "heldout"]

HEADER = struct.Struct("<iHHH")  # label, height, width, channels; the pixels follow as bytes
DIGITS = "sklearn/datasets/data/digits.csv.gz"  # a line per image: 64 pixels from 0 to 16, then the label
NO_LABEL = -1  # fills up the last held-out batch; never counted


class Sample(NamedTuple):
    image: np.ndarray[tuple[int, int, int], np.dtype[np.uint8]]  # height, width, channels
    label: int


class Batch(NamedTuple):
    """n samples: images (n, height, width, channels), float32 in [0, 1]; labels (n,), int64."""

    images: Images
    labels: Labels


def digits() -> dict[Split, list[Sample]]:
    """1,797 handwritten digits of 8 x 8 pixels; every fifth is held out.

    They come from scikit-learn's own file, as importing scikit-learn would take two seconds in each replica.
    """
    table = np.loadtxt(str(distribution("scikit-learn").locate_file(DIGITS)), delimiter=",")
    images = np.round(table[:, :-1] * (255 / 16)).astype(np.uint8).reshape(-1, 8, 8, 1)
    order = np.random.default_rng(0).permutation(len(images))
    samples = [Sample(images[i], int(table[i, -1])) for i in order]
    return {
        "train": [sample for i, sample in enumerate(samples) if i % 5],
        "heldout": samples[::5],
    }


def augment(batch: Batch, indices: Iterable[int], seed: int, noise: float) -> Batch:
    """Add Gaussian noise that follows from the seed and each sample's place in the global order; 0 draws none."""
    if noise == 0:
        return batch
    draws = [np.random.default_rng((seed, i)).standard_normal(batch.images.shape[1:]) for i in indices]
    return Batch(batch.images + np.float32(noise) * np.stack(draws).astype(np.float32), batch.labels)


EXAMPLES: dict[str, Callable[[], dict[Split, list[Sample]]]] = {"digits": digits}
EXAMPLE_SHAPES = {"digits": (8, 8, 1)}  # height, width, channels
EXAMPLE_NOISES = {"digits": 0.1}


def encode(sample: Sample) -> bytes:
    """Raises TrainerError for an image of another type or shape than that of `Sample`."""
    if sample.image.dtype != np.uint8 or sample.image.ndim != 3:
        raise TrainerError(
            f"an image is {sample.image.dtype} of shape {sample.image.shape}; must be uint8, (height, width, channels)"
        )
    return HEADER.pack(sample.label, *sample.image.shape) + sample.image.tobytes()


def decode(record: bytes) -> Sample:
    label, *shape = HEADER.unpack_from(record)
    return Sample(np.frombuffer(record, np.uint8, offset=HEADER.size).reshape(shape), label)


def write(samples: Iterable[Sample], folder: Path, split: Split, shard_count: int = 4) -> None:
    """Deal the samples out to `shard_count` files, like cards."""
    folder.mkdir(parents=True, exist_ok=True)
    names = [f"{split}-{i:05d}-of-{shard_count:05d}.array_record" for i in range(shard_count)]
    # Random access is fast only with one record per group.
    writers = [ArrayRecordWriter(str(folder / name), "group_size:1") for name in names]
    for i, sample in enumerate(samples):
        writers[i % shard_count].write(encode(sample))
    for writer in writers:
        writer.close()


def write_example(name: str, folder: Path) -> None:
    for split, samples in EXAMPLES[name]().items():
        write(samples, folder, split)


@contextlib.contextmanager
def shards(data: str, storage: Storage) -> Iterator[Path]:
    """The folder of shards that `--data` means; an example data set is written for this run only."""
    if data in EXAMPLES:
        with tempfile.TemporaryDirectory(prefix=f"{data}-") as folder:
            write_example(data, Path(folder))
            yield Path(folder)
        return
    path = storage.path(data)
    if not path.is_dir():
        raise TrainerError(f"--data {data}: there is no folder {path}; write shards there with trainer.data.write")
    yield path


def image_shape(data: str, storage: Storage) -> tuple[int, int, int]:
    """Height, width and channels of the images that `--data` means; only one of them is read, of an example none.

    Raises:
        TrainerError: the folder is not on this machine, or has no shard.
    """
    if data in EXAMPLE_SHAPES:
        return EXAMPLE_SHAPES[data]
    path = storage.path(data)
    if not path.is_dir():
        raise TrainerError(
            f"--data {data}: there is no folder {path} to learn the shape of an image from; copy one of its"
            " heldout shards there"
        )
    return Dataset(path, "heldout")[0].image.shape


class Dataset:
    """One split of a folder of shards, by index."""

    def __init__(self, folder: Path, split: Split) -> None:
        paths = sorted(str(path) for path in folder.glob(f"{split}-*.array_record"))
        if not paths:
            raise TrainerError(f"{folder}: no file {split}-*.array_record; write one with trainer.data.write")
        try:
            self._source = grain.sources.ArrayRecordDataSource(paths)
            count = len(self._source)
        except RuntimeError:
            broken = next((path for path in paths if not _readable(path)), str(folder))
            raise TrainerError(f"{broken}: is not an ArrayRecord file, or was cut short; write it again") from None
        if count == 0:
            raise TrainerError(f"{folder}: the {split} shards hold no sample")

    def __len__(self) -> int:
        return len(self._source)

    def __getitem__(self, index: int) -> Sample:
        return decode(self._source[index])

    def batch(self, indices: Iterable[int]) -> Batch:
        # One call: the source reads in parallel, which matters where each read asks a bucket.
        samples = [decode(record) for record in self._source.__getitems__(list(indices))]
        images = np.stack([sample.image for sample in samples]).astype(np.float32) / np.float32(255)
        return Batch(images, np.array([sample.label for sample in samples], np.int64))


def _readable(path: str) -> bool:
    try:
        return len(grain.sources.ArrayRecordDataSource(path)) >= 0
    except RuntimeError:
        return False


def train_batches(dataset: Dataset, config: Config, *, start: int, rank: int, world_size: int) -> Iterator[Batch]:
    """This process's part of the global batch of each step from `start` on.

    Parts differ by at most one sample when the global batch does not divide evenly.

    Raises:
        TrainerError: the global batch is smaller than the world, or a label is no class.
    """
    size = config.global_batch
    if size < world_size:
        raise TrainerError(f"--global-batch is {size}, must be at least one sample per process ({world_size})")
    order = grain.MapDataset.range(len(dataset)).shuffle(seed=config.seed).repeat()
    noise = EXAMPLE_NOISES.get(config.data, 0.0) if config.noise is None else config.noise

    def part(step: int) -> Batch:
        mine = range(step * size + rank, (step + 1) * size, world_size)
        batch = dataset.batch(order[i] for i in mine)
        require_classes(batch, config.classes)
        return augment(batch, mine, config.seed, noise)

    return _ahead(part, range(start, config.steps))


def heldout_batches(dataset: Dataset, config: Config, *, rank: int, world_size: int) -> Iterator[Batch]:
    """Every sample on exactly one process; the same number of equal batches on each of them.

    What is missing at the end is filled up with samples labelled NO_LABEL.
    """
    size = -(-config.global_batch // world_size)

    def part(number: int) -> Batch:
        first, end = number * size * world_size, min((number + 1) * size * world_size, len(dataset))
        mine = range(first + rank, end, world_size)
        batch = dataset.batch(mine or [0])
        require_classes(batch, config.classes)
        return _fill(batch, real=len(mine), size=size)

    return _ahead(part, range(-(-len(dataset) // (size * world_size))))


def _ahead(part: Callable[[int], Batch], numbers: range) -> Iterator[Batch]:
    """`part` of each number in turn, made by other threads before it is asked for."""
    batches = grain.MapDataset.range(numbers.start, numbers.stop).map(part)
    return iter(batches.to_iter_dataset(grain.ReadOptions(num_threads=4, prefetch_buffer_size=8)))


def _fill(part: Batch, real: int, size: int) -> Batch:
    labels = np.full(size, NO_LABEL, np.int64)
    labels[:real] = part.labels[:real]
    images = np.zeros((size, *part.images.shape[1:]), np.float32)
    images[:real] = part.images[:real]
    return Batch(images, labels)


def require_classes(batch: Batch, classes: int) -> None:
    """Raises TrainerError for a label that is no class; on a GPU it would end in an unrelated error."""
    wrong = batch.labels[(batch.labels < 0) | (batch.labels >= classes)]
    if len(wrong):
        raise TrainerError(f"the data has the label {wrong[0]}, must be from 0 to below --classes ({classes})")


def micro_batches(batch: Batch, count: int) -> list[Batch]:
    """At most `count` consecutive, nearly equal parts of a batch, none of them empty."""
    count = min(count, len(batch.labels))
    parts = zip(np.array_split(batch.images, count), np.array_split(batch.labels, count), strict=True)
    return [Batch(images, labels) for images, labels in parts]


def main(name: tyro.conf.Positional[Literal["digits"]], to: str) -> None:
    """Write an example data set as train and held-out shards.

    Args:
        name: Which example.
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


if __name__ == "__main__":
    tyro.cli(main, prog="python -m trainer.data")

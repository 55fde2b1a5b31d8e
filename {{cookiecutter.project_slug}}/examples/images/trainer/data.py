"""Yours to edit: a sample, its encoding, and its batches. In this example, a sample is an image with one label.

`trainer/samples/` uses `encode` and `decode` to write and read samples, and `augment` and `collate` to make batches. No
other file depends on how a sample is defined. All arrays in this file are NumPy arrays, so it works with any framework.
"""

import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import distribution
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from trainer import flags
from trainer.vertex.errors import TrainerError

Array: TypeAlias = Any  # a NumPy array in this file, but a tensor of the framework in model.py

HEADER = struct.Struct("<iHHH")  # label, height, width, channels; the pixels follow as bytes
DIGITS = "sklearn/datasets/data/digits.csv.gz"  # one line per image: 64 pixels from 0 to 16, then the label
EXAMPLE_NOISE = 0.1


@dataclass(frozen=True, kw_only=True)
class DataFlags:
    """The data flags, which `Config` inherits."""

    data: str = "digits"
    """Folder of shards, as a path or gs://BUCKET/FOLDER. The value "digits" selects a small built-in dataset."""
    classes: int = 10
    """Number of classes. Each label is at least 0 and less than this number."""
    noise: float | None = None
    """Standard deviation of the Gaussian noise added to training pixels, on a scale from 0 to 1.
    The default is 0.1 for "digits", and 0 for all other data."""


def findings(config: DataFlags) -> Iterator[str]:
    """Yield an error message, including the flag's name, for each invalid value."""
    yield from flags.at_least(1, config, "classes")
    yield from flags.at_least(0, config, "noise")


class Sample(NamedTuple):
    image: np.ndarray[tuple[int, int, int], np.dtype[np.uint8]]  # height, width, channels
    label: int


class Batch(NamedTuple):
    """A batch of n samples. The first dimension of each array has size n. The `inputs` array is the model's input."""

    inputs: Array  # (n, height, width, channels), float32 in [0, 1]
    labels: Array  # (n,), int64


def encode(sample: Sample) -> bytes:
    """Encode a sample. Raises TrainerError if the image doesn't have the type and shape that `Sample` specifies."""
    image = sample.image
    if image.dtype != np.uint8 or image.ndim != 3:
        raise TrainerError(
            f"an image has dtype {image.dtype} and shape {image.shape},"
            " but it must have dtype uint8 and shape (height, width, channels)"
        )
    return HEADER.pack(sample.label, *image.shape) + image.tobytes()


def decode(record: bytes) -> Sample:
    label, *shape = HEADER.unpack_from(record)
    return Sample(np.frombuffer(record, np.uint8, offset=HEADER.size).reshape(shape), label)


def augment(sample: Sample, random: np.random.Generator, config: DataFlags) -> Sample:
    """Add noise to a training sample.

    The state of `random` depends only on the seed and the sample's position in the run.
    """
    noise = config.noise
    if noise is None:
        noise = EXAMPLE_NOISE if config.data in EXAMPLES else 0
    if noise == 0:
        return sample
    noisy = sample.image + random.normal(0, 255 * noise, sample.image.shape)
    return sample._replace(image=noisy.round().clip(0, 255).astype(np.uint8))


def collate(samples: Sequence[Sample], config: DataFlags) -> Batch:
    """Collate the samples into a batch.

    Raises TrainerError if a label isn't a valid class. Without this check, a GPU would report an unrelated error.
    """
    images = np.divide(np.stack([sample.image for sample in samples]), np.float32(255), dtype=np.float32)
    labels = np.array([sample.label for sample in samples], np.int64)
    wrong = labels[(labels < 0) | (labels >= config.classes)]
    if len(wrong):
        raise TrainerError(f"a label is {wrong[0]}, but it must be at least 0 and below --classes ({config.classes})")
    return Batch(images, labels)


def counts(config: DataFlags, example: Batch) -> dict[str, int]:
    """Return additional per-sample counts for reports, keyed by name. `example` is a batch of one sample."""
    return {}


def show(answer: Callable[[Array], Array], batch: Batch) -> str:
    """Return a sentence that compares the exported model's predictions with the labels of some held-out samples."""
    shown, seen = (" ".join(map(str, labels)) for labels in (batch.labels, np.argmax(answer(batch.inputs), axis=1)))
    return f"held-out labels are {shown}, and predictions are {seen}"


def digits() -> dict[str, list[Sample]]:
    """Return 1,797 images of handwritten digits.

    Each image has 8 x 8 pixels. Every fifth image is held out. The function reads scikit-learn's data file directly,
    because importing scikit-learn would take two seconds in each replica.
    """
    table = np.loadtxt(str(distribution("scikit-learn").locate_file(DIGITS)), delimiter=",")
    images = np.round(table[:, :-1] * (255 / 16)).astype(np.uint8).reshape(-1, 8, 8, 1)
    order = np.random.default_rng(0).permutation(len(images))
    samples = [Sample(images[i], int(table[i, -1])) for i in order]
    return {
        "train": [sample for i, sample in enumerate(samples) if i % 5],
        "heldout": samples[::5],
    }


EXAMPLES: dict[str, Callable[[], dict[str, list[Sample]]]] = {"digits": digits}  # values for --data that aren't folders

"""YOURS: what a sample is, how it is stored, and how samples become a batch. Here: images with one label each.

`trainer/samples/` writes and reads samples with `encode` and `decode`, and makes batches of them with `augment` and
`collate`; the rest of the project knows nothing of what a sample is. All arrays here are numpy's, for any framework.
"""

import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import distribution
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from trainer import flags
from trainer.vertex.errors import TrainerError

Array: TypeAlias = Any  # of numpy here; in model.py a tensor of the framework

HEADER = struct.Struct("<iHHH")  # label, height, width, channels; the pixels follow as bytes
DIGITS = "sklearn/datasets/data/digits.csv.gz"  # a line per image: 64 pixels from 0 to 16, then the label
EXAMPLE_NOISE = 0.1


@dataclass(frozen=True, kw_only=True)
class DataFlags:
    """The flags of Config for the data."""

    data: str = "digits"
    """Folder of shards, as a path or gs://BUCKET/FOLDER; "digits" is a small built-in data set."""
    classes: int = 10
    """Number of classes; labels run from 0 to one below it."""
    noise: float | None = None
    """Standard deviation of Gaussian noise on training pixels (0 to 1); by default 0.1 for "digits", else 0."""


def findings(config: DataFlags) -> Iterator[str]:
    """Yield a phrase, which names the flag, for each wrong value."""
    yield from flags.at_least(1, config, "classes")
    yield from flags.at_least(0, config, "noise")


class Sample(NamedTuple):
    image: np.ndarray[tuple[int, int, int], np.dtype[np.uint8]]  # height, width, channels
    label: int


class Batch(NamedTuple):
    """n samples as arrays, each with n as its first dimension; the model is called with `inputs`."""

    inputs: Array  # (n, height, width, channels), float32 in [0, 1]
    labels: Array  # (n,), int64


def encode(sample: Sample) -> bytes:
    """Raises TrainerError for an image of another type or shape than that of `Sample`."""
    image = sample.image
    if image.dtype != np.uint8 or image.ndim != 3:
        raise TrainerError(
            f"an image is {image.dtype} of shape {image.shape}; must be uint8, (height, width, channels)"
        )
    return HEADER.pack(sample.label, *image.shape) + image.tobytes()


def decode(record: bytes) -> Sample:
    label, *shape = HEADER.unpack_from(record)
    return Sample(np.frombuffer(record, np.uint8, offset=HEADER.size).reshape(shape), label)


def augment(sample: Sample, random: np.random.Generator, config: DataFlags) -> Sample:
    """Return a sample as a training step sees it; `random` follows from the seed and the sample's place in the run."""
    noise = config.noise
    if noise is None:
        noise = EXAMPLE_NOISE if config.data in EXAMPLES else 0
    if noise == 0:
        return sample
    noisy = sample.image + random.normal(0, 255 * noise, sample.image.shape)
    return sample._replace(image=noisy.round().clip(0, 255).astype(np.uint8))


def collate(samples: Sequence[Sample], config: DataFlags) -> Batch:
    """Raises TrainerError for a label that is no class; on a GPU it would end in an unrelated error."""
    images = np.stack([sample.image for sample in samples]).astype(np.float32) / np.float32(255)
    labels = np.array([sample.label for sample in samples], np.int64)
    wrong = labels[(labels < 0) | (labels >= config.classes)]
    if len(wrong):
        raise TrainerError(f"the data has the label {wrong[0]}, must be from 0 to below --classes ({config.classes})")
    return Batch(images, labels)


def counts(config: DataFlags, example: Batch) -> dict[str, int]:
    """Return the counts that reports have besides samples, for one sample; `example` is a batch of one."""
    return {}


def show(answer: Callable[[Array], Array], batch: Batch) -> str:
    """Say in a sentence how the exported model answers some held-out samples."""
    shown, seen = (" ".join(map(str, labels)) for labels in (batch.labels, np.argmax(answer(batch.inputs), axis=1)))
    return f"held-out images show {shown}, and the model sees {seen}"


def digits() -> dict[str, list[Sample]]:
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


EXAMPLES: dict[str, Callable[[], dict[str, list[Sample]]]] = {"digits": digits}  # what --data takes besides a folder

"""Yours to edit: a sample, its encoding, and its batches. In this example, a sample is text stored as bytes.

`trainer/samples/` uses `encode` and `decode` to write and read samples, and `augment` and `collate` to make batches. No
other file depends on how a sample is defined. All arrays in this file are NumPy arrays, so it works with any framework.
"""

import sysconfig
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from trainer import flags
from trainer.vertex.errors import TrainerError

Array: TypeAlias = Any  # a NumPy array in this file, but a tensor of the framework in model.py

BYTES = 256  # the number of different bytes, which form the vocabulary
LENGTH = 1025  # bytes per sample in the example: a context of 1,024, and the byte after it
END = b"\0"  # separator between two files
WRITTEN, TEMPERATURE = 200, 0.7  # bytes that the trained model generates, and the sampling temperature


@dataclass(frozen=True, kw_only=True)
class DataFlags:
    """The data flags, which `Config` inherits."""

    data: str = "stdlib"
    """Folder of shards, as a path or gs://BUCKET/FOLDER.

    "stdlib" selects the source code of Python's standard library.
    """
    context: int = 32
    """Number of bytes that the model sees at a time. It must be less than the number of bytes in a sample."""
    steps: int = 400
    """Number of optimizer steps."""


def findings(config: DataFlags) -> Iterator[str]:
    """Yield an error message, including the flag's name, for each invalid value."""
    yield from flags.at_least(1, config, "context")


class Sample(NamedTuple):
    text: np.ndarray[tuple[int], np.dtype[np.uint8]]  # consecutive bytes


class Batch(NamedTuple):
    """A batch of n samples. The first dimension of each array has size n. The `inputs` array is the model's input."""

    inputs: Array  # (n, context), int32: a byte from 0 to 255
    targets: Array  # (n, context), int64: the byte after each of these


def encode(sample: Sample) -> bytes:
    return sample.text.tobytes()


def decode(record: bytes) -> Sample:
    return Sample(np.frombuffer(record, np.uint8))


def augment(sample: Sample, random: np.random.Generator, config: DataFlags) -> Sample:
    """Drop a random number of bytes from the start of the sample.

    The state of `random` depends only on the seed and the sample's position in the run.
    """
    room = len(sample.text) - config.context
    return sample if room < 1 else Sample(sample.text[random.integers(room) :])


def collate(samples: Sequence[Sample], config: DataFlags) -> Batch:
    """Collate the samples into a batch. Raises TrainerError if a sample isn't longer than the context."""
    shortest = min(len(sample.text) for sample in samples)
    if shortest <= config.context:
        raise TrainerError(f"--context is {config.context}, but it must be less than a sample's {shortest} bytes")
    text = np.stack([sample.text[: config.context + 1] for sample in samples])
    return Batch(text[:, :-1].astype(np.int32), text[:, 1:].astype(np.int64))


def counts(config: DataFlags, example: Batch) -> dict[str, int]:
    """Return additional per-sample counts for reports, keyed by name. `example` is a batch of one sample."""
    return {"tokens": example.inputs.shape[1]}


def show(answer: Callable[[Array], Array], batch: Batch) -> str:
    """Return text that shows how the exported model continues the first held-out sample."""
    text, context = batch.inputs[:1], batch.inputs.shape[1]
    random = np.random.default_rng(0)
    for _ in range(WRITTEN):
        logits = np.asarray(answer(text[:, -context:]), np.float64)[0, -1]
        chances = np.exp((logits - logits.max()) / TEMPERATURE)
        text = np.append(text, [[random.choice(BYTES, p=chances / chances.sum())]], axis=1).astype(text.dtype)
    given, written = (bytes(part.tolist()).decode(errors="replace") for part in np.split(text[0], [context]))
    return f"after {given!r} it writes:\n{written.rstrip()}"


def stdlib() -> dict[str, list[Sample]]:
    """Return samples from the source code of Python's standard library (four million bytes).

    Every twentieth module is held out.
    """
    files = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    return {
        "train": [*packed(file.read_bytes() for i, file in enumerate(files) if i % 20)],
        "heldout": [*packed(file.read_bytes() for file in files[::20])],
    }


def packed(texts: Iterable[bytes]) -> Iterator[Sample]:
    """Concatenate the texts, split the result into samples of equal length, and drop the remainder."""
    rest = b""
    for text in texts:
        rest += text + END
        whole = len(rest) // LENGTH * LENGTH
        yield from (Sample(np.frombuffer(rest, np.uint8, LENGTH, start)) for start in range(0, whole, LENGTH))
        rest = rest[whole:]


EXAMPLES: dict[str, Callable[[], dict[str, list[Sample]]]] = {"stdlib": stdlib}  # values for --data that aren't folders

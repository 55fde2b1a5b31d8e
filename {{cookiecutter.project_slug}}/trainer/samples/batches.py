"""Makes batches in one global order, regardless of the number of processes.

Only the seed determines the order of the training samples. If there are w processes, process r uses the samples r,
r + w, r + 2w, and so on of every global batch. Therefore, a run uses the same batches on 1 machine and on 100 machines.
A run can start at any step without delay, because samples are read by random access.
"""

import errno
import gc
import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from functools import cached_property, partial
from itertools import pairwise
from typing import Any, NamedTuple, TypeVar

import grain
import numpy as np
from grain.multiprocessing import MultiprocessingOptions

from trainer import data
from trainer.config import Config, Job, of_model
from trainer.data import Batch
from trainer.samples.fingerprint import Fingerprint
from trainer.samples.shards import Dataset, collated
from trainer.vertex.errors import TrainerError

Part = TypeVar("Part")


class Masked(NamedTuple):
    """A batch that may be padded at the end. The `mask` array has shape (n,) and is 1 for samples and 0 for padding."""

    batch: Batch
    mask: np.ndarray[tuple[int], np.dtype[np.float32]]


class Data:
    """A job's dataset, which provides training batches in one global order as well as evaluation batches."""

    def __init__(self, job: Job) -> None:
        self._config = job.config
        self.train, self.heldout = Dataset(job.shards, "train"), Dataset(job.shards, "heldout")

    @cached_property
    def fingerprint(self) -> Fingerprint:
        shards = self.train.described(), self.heldout.described()
        return Fingerprint(self._config.global_batch, self._config.seed, *shards, of_model(self._config))

    @cached_property
    def example(self) -> Batch:
        """A batch of one sample, which shows the arrays' shapes and types."""
        return self.heldout.batch([0], self._config)

    def training(self, start: int, rank: int, size: int) -> Iterator[Batch]:
        """Yield one process's slice of the global batch for each step from `start` onward."""
        return train_batches(self.train, self._config, start=start, rank=rank, world_size=size)

    def evaluation(self, rank: int, size: int, micro_batches: int = 1) -> Iterator[Masked]:
        """Yield the batches of held-out samples for one of `size` processes.

        Each held-out sample belongs to exactly one process. All processes yield the same number of batches, and all
        batches have the same size. The batch size equals that of a training micro-batch if each process splits its
        slice into `micro_batches` parts. The last batch is padded with copies of a sample whose mask value is 0.
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


def per_step(config: Config, example: Batch) -> dict[str, int]:
    """Return the per-step counts for the reports. Example: {"samples": 96, "tokens": 6144}."""
    return {name: config.global_batch * count for name, count in {"samples": 1, **data.counts(config, example)}.items()}


def order(count: int, config: Config) -> Any:
    """Map each position in the run to a sample index. Each pass over the samples uses a different order."""
    return grain.MapDataset.range(count).shuffle(seed=config.seed).repeat()


def largest_part(config: Config, count: int) -> int:
    """Return the number of samples in the largest of `count` slices of a global batch."""
    return -(-config.global_batch // count)


def require_samples(config: Config, world_size: int) -> None:
    """Raise TrainerError if the global batch is smaller than the world size."""
    if config.global_batch < world_size:
        raise TrainerError(
            f"--global-batch is {config.global_batch}, but each of the {world_size} processes needs at least one sample"
        )


def train_batches(dataset: Dataset, config: Config, *, start: int, rank: int, world_size: int) -> Iterator[Batch]:
    """Yield this process's slice of the global batch for each step from `start` onward.

    If the global batch isn't divisible by the world size, some slices contain one more sample than others.

    Raises:
        TrainerError: If the global batch is smaller than the world size or if the data doesn't match the flags.
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
    """Yield the return value of `part` for each number, in order.

    Other threads or processes prepare the values in advance. More threads than cores would only compete for them.
    """
    processes = min(processes, len(numbers))
    threads = max(min(cores() // (processes or 1), 4), 1)
    # The buffer is the number of parts that each process holds in memory.
    options = grain.ReadOptions(num_threads=threads, prefetch_buffer_size=2 if processes else 2 * threads)
    source = grain.MapDataset.range(numbers.start, numbers.stop)
    if not processes:
        return iter(source.map(part).to_iter_dataset(options))
    batches = source.map(partial(_in_worker, part)).to_iter_dataset(options)
    return _of_processes(batches.mp_prefetch(MultiprocessingOptions(num_workers=processes, per_worker_buffer_size=2)))


def _in_worker(part: Callable[[int], Part], number: int) -> Part:
    """Return `part(number)`. Raises RuntimeError with a traceback in its text, because some errors can't be pickled."""
    try:
        return part(number)
    except TrainerError:
        raise
    except (Exception, SystemExit):
        raise RuntimeError(f"a process of --data-processes failed:\n{traceback.format_exc()}") from None


def cores() -> int:
    """Return the number of cores that this process may use. macOS doesn't restrict a process to specific cores."""
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1


def _of_processes(dataset: grain.IterDataset[Part]) -> Iterator[Part]:
    """Yield batches from shared memory. If shared memory is full, SIGBUS silently kills a process."""
    batches = iter(dataset)
    try:
        yield from batches
    except Exception as error:
        error.__traceback__ = None  # its frames refer to the iterator
        is_full = isinstance(error, OSError) and error.errno == errno.ENOSPC
        if not (is_full or f"exit code -{signal.SIGBUS:d}." in str(error)):
            raise
        cure = (
            "lower --data-processes, set it to 0 to use threads, or give the container more shared memory"
            " (docker --shm-size)"
        )
        raise TrainerError(f"/dev/shm doesn't have enough space for the batches of --data-processes; {cure}") from None
    finally:
        batches.close()  # ends the processes
        del batches
        gc.collect()  # frees their semaphores, which grain holds in reference cycles; os._exit would leak them


def micro_batches(batch: Batch, count: int) -> list[Batch]:
    """Split a batch into at most `count` consecutive micro-batches of nearly equal size.

    Each micro-batch contains at least one sample.
    """
    size = batch.inputs.shape[0]
    count = min(count, size)
    bounds = [-(-size * i // count) for i in range(count + 1)]
    return [Batch(*(array[a:b] for array in batch)) for a, b in pairwise(bounds)]

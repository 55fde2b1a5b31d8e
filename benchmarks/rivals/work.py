"""The rivals' model, samples, batches and schedule, which match the trainer's for the same flags."""

import contextlib
import json
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from trainer.config import Config
from trainer.parallel import choice
from trainer.samples import shards
from trainer.samples.batches import train_batches


class Work(NamedTuple):
    config: Config
    example: Any  # a batch of one sample
    batches: Iterator[Any]  # of this process


@contextlib.contextmanager
def work(argv: Sequence[str], rank: int, world_size: int) -> Iterator[Work]:
    _, config = choice.parse(argv)
    with tempfile.TemporaryDirectory() as folder:
        shards.write_example(config.data, Path(folder))
        dataset = shards.Dataset(Path(folder), "train")
        batches = train_batches(dataset, config, start=0, rank=rank, world_size=world_size)
        yield Work(config, dataset.batch([0], config), batches)


class Reports:
    """Prints the seconds per step every `log_every` steps, like the trainer."""

    def __init__(self, config: Config, *, is_chief: bool) -> None:
        self._every, self._is_chief = config.log_every, is_chief
        self._steps, self._since = 0, time.perf_counter()

    def step(self, read_loss: Callable[[], Any]) -> None:
        """Count a step. Read the loss only if a report is due, because reading the loss waits for the step."""
        self._steps += 1
        if self._steps % self._every == 0:
            loss = float(read_loss())
            seconds, self._since = (time.perf_counter() - self._since) / self._every, time.perf_counter()
            if self._is_chief:
                print(json.dumps({"train/step_seconds": seconds, "train/loss": loss}), flush=True)

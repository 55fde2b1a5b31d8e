"""Scores of one checkpoint, in one process and on one device, without a process group."""

from collections.abc import Callable, Mapping
from pathlib import Path

import torch

from trainer import train
from trainer.checkpoints import saver
from trainer.cluster.world import World
from trainer.config import Job
from trainer.parallel.strategy import Strategy
from trainer.samples.batches import Data
from trainer.step.state import new_model


def scorer(job: Job) -> Callable[[Path], Mapping[str, float]]:
    """Return a function: checkpoint -> loss and metrics over the held-out samples, on a GPU if there is one.

    Raises:
        TrainerError: there is no held-out shard, or, when called, the checkpoint is of another model.
    """
    config, data = job.config, Data(job)
    alone = World(rank=0, size=1, device=torch.device("cuda" if torch.cuda.is_available() else "cpu"))
    net = new_model(config, data.example).to(alone.device)

    def score(folder: Path) -> Mapping[str, float]:
        saver.read_model(net, folder)
        return train.evaluate(config, Strategy(), net, data, alone)

    return score

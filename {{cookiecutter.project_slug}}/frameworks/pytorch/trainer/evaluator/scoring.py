"""Scores one checkpoint: what an evaluator does, in one process and on one device, without a process group."""

from collections.abc import Callable
from pathlib import Path

import torch

from trainer import checkpoint, model, train
from trainer.config import Config
from trainer.processes import World
from trainer.shards import Dataset


def scorer(config: Config, shards: Path) -> Callable[[Path], dict[str, float]]:
    """Checkpoint -> loss and metrics over the held-out samples, on a GPU if there is one.

    Raises:
        TrainerError: there is no held-out shard, or, when called, the checkpoint is of another model.
    """
    heldout = Dataset(shards, "heldout")
    alone = World(rank=0, size=1, device=torch.device("cuda" if torch.cuda.is_available() else "cpu"))
    net = model.build(config, heldout.batch([0], config)).to(alone.device)

    def score(folder: Path) -> dict[str, float]:
        checkpoint.read_model(net, folder)
        return train.evaluate(config, net, heldout, alone)

    return score

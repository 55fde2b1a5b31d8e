"""python -m trainer.evaluator: score the checkpoints of a training with the same flags, on one device.

It is the program of pool 3, and joins no process group.
"""

import os
import sys
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from pathlib import Path

import torch

from trainer import train
from trainer.checkpoints import saver
from trainer.cluster.world import World
from trainer.config import Job
from trainer.evaluator import follow
from trainer.parallel.strategy import Strategy
from trainer.samples.batches import Data
from trainer.step.state import new_model
from trainer.vertex.log import exit_code


def run(argv: Sequence[str], environ: MutableMapping[str, str]) -> None:
    """Do the evaluator's part. Raises TrainerError for an error that the user can fix."""
    follow.run(argv, environ, scorer)


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


if __name__ == "__main__":
    sys.exit(exit_code(run, sys.argv[1:], os.environ))

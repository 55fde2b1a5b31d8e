"""Evaluates a run's checkpoints on one device, using the run's flags (python -m trainer.evaluator).

The evaluator in pool 3 runs this program. The program doesn't join the process group.
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
    """Run the evaluator. Raises TrainerError for errors that the user can fix."""
    follow.run(argv, environ, scorer)


def scorer(job: Job) -> Callable[[Path], Mapping[str, float]]:
    """Return a function that evaluates a checkpoint on the held-out samples.

    If the machine has a GPU, the function uses it.

    Raises:
        TrainerError: if the dataset doesn't have a held-out shard. The returned function raises TrainerError if a
            checkpoint belongs to a different model.
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

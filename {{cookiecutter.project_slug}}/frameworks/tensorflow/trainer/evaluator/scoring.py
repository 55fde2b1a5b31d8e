"""Scores of one checkpoint, in one process and on one device."""

from collections.abc import Callable, Mapping
from pathlib import Path

from trainer import train
from trainer.checkpoints import saver
from trainer.cluster import devices
from trainer.cluster.world import World
from trainer.config import Job
from trainer.parallel.multi_worker_mirrored import MultiWorkerMirrored
from trainer.parallel.strategy import Loop
from trainer.samples.batches import Data
from trainer.step.optimizers import new_optimizer
from trainer.step.totals import names


def scorer(job: Job) -> Callable[[Path], Mapping[str, float]]:
    """Return a function: checkpoint -> loss and metrics over the held-out samples, on a GPU if there is one.

    Raises:
        TrainerError: there is no held-out shard, or, when called, the checkpoint is of another model.
    """
    devices.compute_in(job.config.precision, devices.set_up_gpus())
    data, strategy, alone = Data(job), MultiWorkerMirrored(), World()
    state = train.new_state(job.config, strategy, data.example, alone)
    loop = Loop(job.config, names(state.net, data.example), train.train_step, new_optimizer)
    spread = strategy.wrap(loop, state, alone)

    def score(folder: Path) -> Mapping[str, float]:
        saver.read_model(state.net, folder)
        return train.evaluate(spread, data, alone)

    return score

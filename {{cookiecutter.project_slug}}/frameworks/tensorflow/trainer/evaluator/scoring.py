"""Scores of one checkpoint, in one process and on one device."""

from collections.abc import Callable, Mapping
from pathlib import Path

import tensorflow as tf

from trainer import train
from trainer.checkpoints import saver
from trainer.cluster import devices
from trainer.cluster.world import World
from trainer.job import Job
from trainer.parallel.multi_worker_mirrored import Mirrored
from trainer.parallel.precision import compute_in
from trainer.shards import Data
from trainer.totals import means


def scorer(job: Job) -> Callable[[Path], Mapping[str, float]]:
    """Return a function: checkpoint -> loss and metrics over the held-out samples, on a GPU if there is one.

    Raises:
        TrainerError: there is no held-out shard, or, when called, the checkpoint is of another model.
    """
    compute_in(job.config.precision, devices.set_up_gpus())
    data = Data(job)
    # The strategy that TensorFlow has without one: this process and its first device.
    alone = World(tf.distribute.get_strategy(), rank=0, size=1)
    state = train.new_state(job.config, data.example, alone)
    replicas = Mirrored(job, state, data.example, alone)

    def score(folder: Path) -> Mapping[str, float]:
        saver.read_model(state.net, folder)
        return means(replicas.evaluate(data), replicas.names)

    return score

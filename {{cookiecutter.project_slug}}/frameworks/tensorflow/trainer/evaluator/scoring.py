"""Scores one checkpoint by itself: what an evaluator does, in one process and on one device."""

from collections.abc import Callable
from pathlib import Path

import tensorflow as tf

from trainer import checkpoint, strategy, train
from trainer.config import Config
from trainer.shards import Dataset
from trainer.strategy import World


def scorer(config: Config, shards: Path) -> Callable[[Path], dict[str, float]]:
    """Checkpoint -> loss and metrics over the held-out samples, on a GPU if there is one.

    Raises:
        TrainerError: there is no held-out shard, or, when called, the checkpoint is of another model.
    """
    strategy.compute_in(config.precision, strategy.set_up_gpus())
    heldout = Dataset(shards, "heldout")
    example = heldout.batch([0], config)
    # The strategy that TensorFlow has without one: this process and its first device.
    alone = World(tf.distribute.get_strategy(), rank=0, size=1)
    state = train.start(config, example, alone)
    replicas = train.Mirrored(config, state, example, alone)

    def score(folder: Path) -> dict[str, float]:
        checkpoint.read_model(state.model, folder)
        return train.means(replicas.evaluate(heldout), replicas.names)

    return score

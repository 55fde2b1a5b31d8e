"""Scores one checkpoint by itself: what an evaluator does, in one process and on one device."""

from pathlib import Path

import tensorflow as tf

from trainer import checkpoint, strategy, train
from trainer.config import Config
from trainer.data import Dataset
from trainer.evaluator import Metrics, Score
from trainer.strategy import World


def scorer(config: Config, shards: Path) -> Score:
    """Checkpoint -> loss and accuracy over the held-out samples, on a GPU if there is one.

    Raises:
        TrainerError: there is no held-out shard, or, when called, the checkpoint is of another model.
    """
    strategy.compute_in(config.precision, strategy.set_up_gpus())
    heldout = Dataset(shards, "heldout")
    net = train.new_model(config, heldout[0].image.shape)
    # The strategy that TensorFlow has without one: this process and its first device.
    world = World(tf.distribute.get_strategy(), rank=0, size=1)
    evaluate = train.evaluation(config, heldout, net, world)

    def score(folder: Path) -> Metrics:
        checkpoint.read_model(net, folder)
        return evaluate()

    return score

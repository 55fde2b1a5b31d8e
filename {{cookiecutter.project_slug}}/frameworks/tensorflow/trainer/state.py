"""State of a run, which a checkpoint holds."""

from dataclasses import dataclass

import keras
import tensorflow as tf


@dataclass
class State:
    """State of a run, as a checkpoint holds it; `step` counts finished steps."""

    net: keras.Model
    optimizer: keras.Optimizer
    step: int = 0

    def objects(self) -> tf.train.Checkpoint:
        return tf.train.Checkpoint(model=self.net, optimizer=self.optimizer)

    def variables(self) -> list[keras.Variable]:
        return [*self.net.variables, *self.optimizer.variables]

"""Tests whether the model draws random numbers during training.

If the model draws random numbers, losses depend on the number of processes.
"""

import tensorflow as tf

from tests.samples import batch
from trainer import model
from trainer.config import Config


def draws() -> bool:
    """Return whether the model draws random numbers, for example for dropout."""
    net, inputs = model.build(Config(), batch(1)), batch(4).inputs
    return not bool(tf.reduce_all(net(inputs, training=True) == net(inputs, training=True)))

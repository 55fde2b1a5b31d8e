"""Whether the model draws random numbers while it trains: then what it loses depends on the number of processes."""

import tensorflow as tf

from tests.samples import batch
from trainer import model
from trainer.config import Config


def draws() -> bool:
    """Draw numbers, as dropout does."""
    net, inputs = model.build(Config(), batch(1)), batch(4).inputs
    return not bool(tf.reduce_all(net(inputs, training=True) == net(inputs, training=True)))

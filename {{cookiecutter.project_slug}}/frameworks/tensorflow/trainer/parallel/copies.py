"""Comparison of the copies of a model, of which each device, or machine, has one and gives it the same gradients."""

import zlib
from typing import Any

import numpy as np
import tensorflow as tf

from trainer.cluster.world import World
from trainer.state import State

INTEGERS = {1: tf.int8, 2: tf.int16, 4: tf.int32, 8: tf.int64}  # by bytes
WEIGHTS = 0x9E3779B97F4A7C1, 0x2545F4914F6CDD1  # odd, of rows and of columns


def parted(state: State, world: World) -> dict[int, dict[str, int]]:
    """Return the digests of all tensors, by data rank, of copies that are not alike; empty if all are.

    Every machine must call it. One number a copy travels where they are alike.
    """
    if world.strategy.num_replicas_in_sync == 1:  # parameter servers, too, hold one
        return {}
    held = [*state.net.trainable_variables, *state.optimizer.variables]  # buffers may differ, as those of BatchNorm
    of_each_device = [[digest(copy) for copy in world.strategy.experimental_local_results(one.value)] for one in held]
    own = np.array(of_each_device).T
    if len({total for totals in world.gather([zlib.crc32(row.tobytes()) for row in own]) for total in totals}) == 1:
        return {}
    rows = np.array(world.gather(own.flatten().tolist())).reshape(-1, len(held)).tolist()
    return {i: {one.path: value for one, value in zip(held, row, strict=True)} for i, row in enumerate(rows)}


def digest(tensor: Any) -> tf.Tensor:
    """Return the sum of all bit patterns, each times a weight by its row and column: a whole number, which wraps."""
    with tf.device(tensor.device):
        bits = tf.bitcast(tensor, INTEGERS[tensor.dtype.size])
        # Else two signs that change would cancel out in a sum that wraps.
        half = tf.constant(4 * tensor.dtype.size, bits.dtype)
        bits = tf.bitwise.bitwise_xor(bits, tf.bitwise.right_shift(bits, half))
        bits = tf.cast(bits, tf.int64) if "GPU" in tensor.device else bits  # TensorFlow adds up int32 on CPUs alone
        bits = tf.reshape(bits, [-1, tensor.shape[-1] if tensor.shape.rank else 1])
        sums = (tf.cast(tf.reduce_sum(bits, axis), tf.int64) for axis in (1, 0))
        rows, columns = (tf.reduce_sum(tf.cumsum(one)) for one in sums)  # a running sum weighs each by its place
        return rows * WEIGHTS[0] + columns * WEIGHTS[1]

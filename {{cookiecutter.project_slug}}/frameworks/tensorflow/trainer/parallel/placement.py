"""Layers on the devices of one machine: each computes, and keeps its variables, on a device of its own choice.

The layers run one after the other, so the devices hold a large model together and do not compute it faster; with
`--micro-batches` several parts of a batch are under way at once, one on each device, as TensorFlow starts whatever
has its inputs.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import keras
import tensorflow as tf


def even(count: int, devices: Sequence[str]) -> list[str]:
    """The device of each of `count` layers: consecutive runs whose lengths differ by one at most."""
    return [devices[i * len(devices) // count] for i in range(count)]


def call_on(device: str, layer: keras.Layer, inputs: Any) -> Any:
    """Build the layer on the device, call it, and let it run there from now on; "" leaves all that to TensorFlow.

    The layer stays what it is, so that a checkpoint does not depend on the placement.
    """
    if not device:
        return layer(inputs)
    layer.call = partial(_call_on, device, layer.call)
    with tf.device(device):
        return layer(inputs)


def _call_on(device: str, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    with tf.device(device):
        return call(*args, **kwargs)

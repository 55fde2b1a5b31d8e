"""Places layers on the devices of one machine: each layer computes, and keeps its variables, on a chosen device.

The layers run one after the other, so the devices together hold a larger model, but don't compute it faster. If
`--micro-batches` splits the batch, the devices work on different micro-batches at the same time, because TensorFlow
starts each operation as soon as its inputs are ready.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import keras
import tensorflow as tf


def even(count: int, devices: Sequence[str]) -> list[str]:
    """Return a device for each of `count` layers. Each device gets an equal share of consecutive layers."""
    return [devices[i * len(devices) // count] for i in range(count)]


def call_on(device: str, layer: keras.Layer, inputs: Any) -> Any:
    """Build and call the layer on the device, where later calls also run. "" leaves the choice to TensorFlow.

    The layer object stays the same, so a checkpoint doesn't depend on the placement.
    """
    if not device:
        return layer(inputs)
    layer.call = partial(_call_on, device, layer.call)
    with tf.device(device):
        return layer(inputs)


def _call_on(device: str, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    with tf.device(device):
        return call(*args, **kwargs)

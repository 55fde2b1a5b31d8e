"""Places the layers of a model, and the variables of each layer, on the devices of one machine.

Together, the devices can hold a larger model than a single device can. However, a step isn't faster on several devices,
because the layers run one after another. With `--micro-batches`, the devices process different micro-batches
simultaneously, because TensorFlow starts each operation as soon as its inputs are ready.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import keras
import tensorflow as tf


def even(count: int, devices: Sequence[str]) -> list[str]:
    """Return a device for each of `count` layers. Each device receives about the same number of consecutive layers."""
    return [devices[i * len(devices) // count] for i in range(count)]


def call_on(device: str, layer: keras.Layer, inputs: Any) -> Any:
    """Build and call the layer on the device. Later calls to the layer also run on this device.

    If `device` is empty, TensorFlow chooses the device.

    The layer isn't wrapped in another layer, so checkpoints don't depend on the placement.
    """
    if not device:
        return layer(inputs)
    layer.call = partial(_call_on, device, layer.call)
    with tf.device(device):
        return layer(inputs)


def _call_on(device: str, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    with tf.device(device):
        return call(*args, **kwargs)

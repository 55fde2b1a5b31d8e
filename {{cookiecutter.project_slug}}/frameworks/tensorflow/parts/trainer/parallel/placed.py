"""Gradients and updates of variables that lie on several devices of one machine, each of which computes its own.

The alternative, DTensor, splits each matrix instead. On two devices of one CPU a stack of eight blocks took as long
either way, within the noise, and gave the same losses (TensorFlow 2.21, November 2026: 38 to 69 ms a step by layers,
40 to 52 ms by DTensor). But Keras 3 makes no variables that DTensor splits, its own `keras.distribution` leaves them
whole under TensorFlow without a word, and DTensor brings a cluster of its own, next to which
MultiWorkerMirroredStrategy, with its packs for Reduction Server, has no place.
"""

from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf


def add_gradients(sums: Sequence[tf.Tensor], loss: tf.Tensor, variables: Sequence[Any]) -> list[tf.Tensor]:
    """The sums and the gradients of the loss; the backward pass of a layer runs where its forward pass ran.

    A GradientTape would run all of it on the first device, with the activations of all layers. For a tf.function only.
    """
    values = [variable.value for variable in variables]
    gradients = tf.compat.v1.gradients(loss, values, colocate_gradients_with_ops=True)
    placed = []
    for total, gradient, variable in zip(sums, gradients, variables, strict=True):
        with tf.device(device_of(variable)):
            placed.append(total + gradient)
    return placed


def device_of(variable: Any) -> str:
    """The device of a Keras variable, or of one of TensorFlow."""
    return str((variable.value if isinstance(variable, keras.Variable) else variable).device)


class PlacedAdamW(keras.optimizers.AdamW):  # type: ignore[misc] # Keras has no types
    """AdamW that updates each variable on the device that holds it, with gradients that are all-reduced already.

    Keras 3 leaves the device to TensorFlow, which would compute all updates on the first GPU.
    """

    def _apply_weight_decay(self, variables: Sequence[Any]) -> None:
        for variable in filter(self._use_weight_decay, variables):
            with tf.device(device_of(variable)):
                variable.assign_sub(variable * self.weight_decay * self.learning_rate)

    def _backend_update_step(self, grads: Sequence[tf.Tensor], variables: Sequence[Any], learning_rate: Any) -> None:
        for gradient, variable in zip(grads, variables, strict=True):
            with tf.device(device_of(variable)):
                self.update_step(gradient, variable, learning_rate)

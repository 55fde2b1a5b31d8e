"""Optimizers of Keras for gradients that are all-reduced already."""

from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from trainer.placement import device_of
from trainer.vertex.errors import TrainerError

# Ours override these of Keras' optimizers; under another name gradients would be all-reduced twice, without a word.
PRIVATE = ("_all_reduce_sum_gradients", "_apply_weight_decay", "_backend_update_step")


def require_keras() -> None:
    """Raises TrainerError where Keras is not as our optimizers want it."""
    if missing := [name for name in PRIVATE if not hasattr(keras.optimizers.AdamW, name)]:
        raise TrainerError(
            f"Keras {keras.__version__} has no {missing[0]}, which trainer/parallel/optimizers.py overrides; install"
            " the version of requirements/, or rewrite the optimizers there"
        )


class AdamW(keras.optimizers.AdamW):  # type: ignore[misc] # Keras has no types
    """AdamW for gradients that are all-reduced already.

    Keras 3 all-reduces them itself, and has no switch for it. But clipping needs the global norm of the all-reduced
    gradients, and a second all-reduce would double the traffic.
    """

    def _all_reduce_sum_gradients(self, grads_and_vars: Any) -> Any:
        return grads_and_vars


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

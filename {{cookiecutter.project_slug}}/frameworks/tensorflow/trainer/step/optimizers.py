"""Optimizers of Keras for gradients that are all-reduced already."""

from typing import Any

import keras

from trainer.config import Config
from trainer.vertex.errors import TrainerError

# Ours override these of Keras' optimizers; under another name gradients would be all-reduced twice, without a word.
PRIVATE = ("_all_reduce_sum_gradients", "_apply_weight_decay", "_backend_update_step")


def require_keras() -> None:
    """Raises TrainerError where Keras is not as our optimizers want it."""
    if missing := [name for name in PRIVATE if not hasattr(keras.optimizers.AdamW, name)]:
        raise TrainerError(
            f"Keras {keras.__version__} has no {missing[0]}, which trainer/step/optimizers.py overrides; install"
            " the version of requirements/, or rewrite the optimizers there"
        )


class AdamW(keras.optimizers.AdamW):  # type: ignore[misc] # Keras has no types
    """AdamW for gradients that are all-reduced already.

    Keras 3 all-reduces them itself, and has no switch for it. But clipping needs the global norm of the all-reduced
    gradients, and a second all-reduce would double the traffic.
    """

    def _all_reduce_sum_gradients(self, grads_and_vars: Any) -> Any:
        return grads_and_vars


def new_optimizer(
    config: Config, variables: list[Any], kind: type[keras.optimizers.AdamW] = AdamW
) -> keras.optimizers.AdamW:
    """AdamW, which leaves biases and other vectors undecayed."""
    optimizer = kind(config.learning_rate, weight_decay=config.weight_decay, epsilon=1e-8)
    optimizer.exclude_from_weight_decay([v for v in variables if len(v.shape) <= 1])
    optimizer.build(variables)
    return optimizer

"""The number format of the forward pass; weights and gradients stay float32."""

from collections.abc import Sequence

import keras
import tensorflow as tf

from trainer.cluster.devices import has_bfloat16

LOW = "mixed_bfloat16"  # of GPUs that have it


def compute_in(precision: str, gpus: Sequence[tf.config.PhysicalDevice]) -> None:
    """Set the type of the forward pass; `auto` is bfloat16 where the GPUs have it."""
    if precision == "bfloat16" or (precision == "auto" and gpus and has_bfloat16(gpus[0])):
        keras.config.set_dtype_policy(LOW)

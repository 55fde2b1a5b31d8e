"""YOURS: the model, its loss, and its metrics. This example: a Vision Transformer that classifies images.

The training loop uses only `build`, `losses`, and `metrics`. Losses and metrics are one number per sample. The loop
computes sums, means, and the division by the global batch.

Source: Dosovitskiy et al., "An Image Is Worth 16x16 Words", 2020. This model has pre-norm
blocks, mean pooling instead of a class token, and no dropout. It uses layer normalization, not batch normalization,
because Keras 3 doesn't average the moving statistics over the workers.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import keras
import tensorflow as tf
from keras import layers, ops

from trainer import flags
from trainer.data import Batch, DataFlags
from trainer.parallel import placement
from trainer.vertex.errors import TrainerError


@dataclass(frozen=True, kw_only=True)
class ModelFlags(DataFlags):
    """Config's flags for the model, in addition to the flags for the data."""

    size: Literal["tiny", "small", "base", "large", "xl"] = "tiny"
    """Model size: about 0.2, 21, 86, 303, or 1,208 million parameters."""
    patch: int = 2
    """Side of a square patch, in pixels. It must divide the image's height and width."""


def findings(config: ModelFlags) -> Iterator[str]:
    """Yield a phrase with the flag's name for each invalid value."""
    yield from flags.at_least(1, config, "patch")


@dataclass(frozen=True)
class Size:
    width: int
    depth: int
    heads: int


SIZES = {
    "tiny": Size(64, 4, 4),
    "small": Size(384, 12, 6),
    "base": Size(768, 12, 12),
    "large": Size(1024, 24, 16),
    "xl": Size(2048, 24, 16),
}


class Attention(layers.Layer):
    """(n, tokens, width) -> the same shape."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.split = (3, heads, width // heads)
        # A bias on the keys has no gradient, because it doesn't change the softmax.
        self.qkv = layers.Dense(3 * width, use_bias=False)
        self.out = layers.Dense(width)

    def call(self, x: Any) -> Any:
        tokens = x.shape[1]
        q, k, v = ops.unstack(ops.reshape(self.qkv(x), (-1, tokens, *self.split)), axis=2)
        return self.out(ops.reshape(ops.dot_product_attention(q, k, v), (-1, tokens, x.shape[2])))


class Block(layers.Layer):
    """(n, tokens, width) -> the same shape."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1 = layers.LayerNormalization(epsilon=1e-5)
        self.attention = Attention(width, heads)
        self.norm2 = layers.LayerNormalization(epsilon=1e-5)
        self.up = layers.Dense(4 * width, activation="gelu")
        self.down = layers.Dense(width)

    def call(self, x: Any) -> Any:
        x = x + self.attention(self.norm1(x))
        return x + self.down(self.up(self.norm2(x)))


class Embed(layers.Layer):
    """Images (n, height, width, channels) -> embedded patches (n, tokens, size)."""

    def __init__(self, patch: int, width: int) -> None:
        super().__init__()
        self.patch = patch
        self.project = layers.Dense(width)

    def build(self, shape: tuple[int, ...]) -> None:
        tokens = (shape[1] // self.patch) * (shape[2] // self.patch)
        self.position = self.add_weight(
            shape=(tokens, self.project.units), initializer=keras.initializers.RandomNormal(stddev=0.02)
        )

    def call(self, images: Any) -> Any:
        _, height, width, channels = images.shape
        rows, columns = height // self.patch, width // self.patch
        tiles = ops.reshape(images, (-1, rows, self.patch, columns, self.patch, channels))
        tiles = ops.transpose(tiles, (0, 1, 3, 2, 4, 5))
        return self.project(ops.reshape(tiles, (-1, rows * columns, self.patch**2 * channels))) + self.position


class Head(layers.Layer):
    """(n, tokens, width) -> logits (n, classes), in float32 even if the other layers compute in bfloat16."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.norm = layers.LayerNormalization(epsilon=1e-5)
        self.out = layers.Dense(classes, dtype="float32")

    def call(self, x: Any) -> Any:
        return self.out(ops.mean(self.norm(x), axis=1))


def build(config: ModelFlags, example: Batch, devices: Sequence[str] = ("",)) -> keras.Model:
    """Build the model for batches like the example. Keras' random state determines the initial weights.

    Args:
        devices: TensorFlow's names of devices on this machine, on which the blocks are placed in turn. With "",
            TensorFlow itself places the blocks, as for a strategy that copies the model to every device.

    Raises:
        TrainerError: If the patch doesn't divide the image, or if there are more devices than blocks.
    """
    height, width, channels = example.inputs.shape[1:]
    if height % config.patch or width % config.patch:
        raise TrainerError(f"--patch is {config.patch}, but must divide the image of {height} x {width} pixels")
    size = SIZES[config.size]
    if len(devices) > size.depth:
        raise TrainerError(f"--degree is {len(devices)}, but must be at most the {size.depth} blocks of {config.size}")
    first, *others = placement.even(size.depth, devices)
    images = keras.Input((height, width, channels))
    x = placement.call_on(first, Embed(config.patch, size.width), images)
    for device in (first, *others):
        x = placement.call_on(device, Block(size.width, size.heads), x)
    return keras.Model(images, placement.call_on(devices[-1], Head(config.classes), x))


def losses(output: tf.Tensor, batch: Batch) -> tf.Tensor:
    """Return each sample's cross-entropy (n,), in float32, from logits (n, classes). The loop minimizes their mean."""
    return tf.nn.sparse_softmax_cross_entropy_with_logits(batch.labels, output)


def metrics(output: tf.Tensor, batch: Batch) -> dict[str, tf.Tensor]:
    """Return the metrics besides the loss, each of shape (n,): accuracy is 1 for a correct class, and 0 otherwise."""
    return {"accuracy": tf.cast(tf.argmax(output, axis=1) == batch.labels, tf.float32)}

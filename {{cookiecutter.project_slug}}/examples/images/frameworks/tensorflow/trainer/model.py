"""YOURS: the model, its loss and its metrics. Here: a Vision Transformer that classifies images.

The loop calls `build`, `losses` and `metrics`, and knows nothing else of the model. Losses and metrics are one number
per sample: sums, means and the division by the global batch are the loop's.

Source: Dosovitskiy et al., "An Image Is Worth 16x16 Words", 2020; pre-norm blocks, mean pooling in
place of a class token, no dropout. Layer normalization, never batch normalization: Keras 3 does not
average its moving statistics over the workers.
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
    """The flags of Config for the model, besides those of the data."""

    size: Literal["tiny", "small", "base", "large", "xl"] = "tiny"
    """Model size: about 0.2, 21, 86, 303 or 1,208 million parameters."""
    patch: int = 2
    """Side of a square patch, in pixels; must divide the image."""


def findings(config: ModelFlags) -> Iterator[str]:
    """Yield a phrase, which names the flag, for each wrong value."""
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
        # A bias on the keys has no gradient: the softmax does not see it.
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
    """(n, tokens, width) -> logits (n, classes), in float32 also where the rest computes in bfloat16."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.norm = layers.LayerNormalization(epsilon=1e-5)
        self.out = layers.Dense(classes, dtype="float32")

    def call(self, x: Any) -> Any:
        return self.out(ops.mean(self.norm(x), axis=1))


def build(config: ModelFlags, example: Batch, devices: Sequence[str] = ("",)) -> keras.Model:
    """The model for batches that look like the example; its weights follow from Keras' random state.

    Args:
        devices: of this machine, by TensorFlow's names, on which the blocks are placed in turn; "" leaves the
            placement to TensorFlow, as a strategy that copies the model to every device needs.

    Raises:
        TrainerError: the patch does not divide the image, or there are more devices than blocks.
    """
    height, width, channels = example.inputs.shape[1:]
    if height % config.patch or width % config.patch:
        raise TrainerError(f"--patch is {config.patch}, must divide the image of {height} x {width} pixels")
    size = SIZES[config.size]
    if len(devices) > size.depth:
        raise TrainerError(f"--degree is {len(devices)}, must be at most the {size.depth} blocks of {config.size}")
    first, *others = placement.even(size.depth, devices)
    images = keras.Input((height, width, channels))
    x = placement.call_on(first, Embed(config.patch, size.width), images)
    for device in (first, *others):
        x = placement.call_on(device, Block(size.width, size.heads), x)
    return keras.Model(images, placement.call_on(devices[-1], Head(config.classes), x))


def losses(output: tf.Tensor, batch: Batch) -> tf.Tensor:
    """Return losses to minimize the mean of: logits (n, classes) -> cross-entropy of each sample, (n,), float32."""
    return tf.nn.sparse_softmax_cross_entropy_with_logits(batch.labels, output)


def metrics(output: tf.Tensor, batch: Batch) -> dict[str, tf.Tensor]:
    """Return the metrics, reported besides the loss: logits (n, classes) -> 1 for a right answer, else 0, (n,)."""
    return {"accuracy": tf.cast(tf.argmax(output, axis=1) == batch.labels, tf.float32)}

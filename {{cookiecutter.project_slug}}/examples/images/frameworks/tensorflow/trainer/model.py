"""Yours to edit: the model, its loss, and its metrics. This example is a Vision Transformer, which classifies images.

The training loop uses only `build`, `losses`, and `metrics`. Both `losses` and `metrics` return one number per sample,
which the training loop averages over the global batch.

Source: Dosovitskiy et al., "An Image Is Worth 16x16 Words", 2020. This model has pre-norm blocks, uses mean pooling
instead of a class token, and doesn't use dropout. It uses layer normalization, not batch normalization, because Keras 3
doesn't average the moving statistics across workers.
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
    """The model and data flags, which `Config` inherits."""

    size: Literal["tiny", "small", "base", "large", "xl"] = "tiny"
    """Model size. From smallest to largest, the models have about 0.2, 21, 86, 303, and 1,208 million parameters."""
    patch: int = 2
    """Side length of a square patch, in pixels. The image's height and width must be divisible by this number."""


def findings(config: ModelFlags) -> Iterator[str]:
    """Yield an error message, including the flag's name, for each invalid value."""
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
    """A layer that transforms tokens of shape (n, tokens, width) without changing their shape."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.split = (3, heads, width // heads)
        # A bias on the keys has no gradient, because it doesn't change the softmax.
        self.qkv = layers.Dense(3 * width, use_bias=False)
        self.out = layers.Dense(width)

    def build(self, shape: tuple[int, ...]) -> None:
        self.qkv.build(shape)
        self.out.build(shape)

    def call(self, x: Any) -> Any:
        tokens = x.shape[1]
        q, k, v = ops.unstack(ops.reshape(self.qkv(x), (-1, tokens, *self.split)), axis=2)
        return self.out(ops.reshape(ops.dot_product_attention(q, k, v), (-1, tokens, x.shape[2])))


class Block(layers.Layer):
    """A layer that transforms tokens of shape (n, tokens, width) without changing their shape."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1 = layers.LayerNormalization(epsilon=1e-5)
        self.attention = Attention(width, heads)
        self.norm2 = layers.LayerNormalization(epsilon=1e-5)
        self.up = layers.Dense(4 * width, activation="gelu")
        self.down = layers.Dense(width)

    def build(self, shape: tuple[int, ...]) -> None:
        for layer in (self.norm1, self.attention, self.norm2, self.up):
            layer.build(shape)
        self.down.build((*shape[:-1], self.up.units))

    def call(self, x: Any) -> Any:
        x = x + self.attention(self.norm1(x))
        return x + self.down(self.up(self.norm2(x)))


class Embed(layers.Layer):
    """A layer that maps images of shape (n, height, width, channels) to embeddings of shape (n, tokens, width)."""

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
    """A layer that maps tokens of shape (n, tokens, width) to logits of shape (n, classes).

    The logits are float32 even if other layers compute in bfloat16.
    """

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.norm = layers.LayerNormalization(epsilon=1e-5)
        self.out = layers.Dense(classes, dtype="float32")

    def call(self, x: Any) -> Any:
        return self.out(ops.mean(self.norm(x), axis=1))


def build(config: ModelFlags, example: Batch, devices: Sequence[str] = ("",)) -> keras.Model:
    """Build the model for inputs shaped like `example.inputs`. Keras's random state determines the initial weights.

    Args:
        devices: the TensorFlow names of the local devices that hold the transformer blocks. If a name is empty (for
            example, because a strategy replicates the model on every device), TensorFlow chooses the device.

    Raises:
        TrainerError: If the image size isn't divisible by the patch size or if there are more devices than blocks.
    """
    height, width, channels = example.inputs.shape[1:]
    if height % config.patch or width % config.patch:
        raise TrainerError(f"--patch {config.patch} doesn't evenly divide the image height {height} and width {width}")
    size = SIZES[config.size]
    if len(devices) > size.depth:
        raise TrainerError(f"--degree is {len(devices)}, but {config.size} has only {size.depth} blocks")
    first, *others = placement.even(size.depth, devices)
    images = keras.Input((height, width, channels))
    x = placement.call_on(first, Embed(config.patch, size.width), images)
    for device in (first, *others):
        x = placement.call_on(device, Block(size.width, size.heads), x)
    return keras.Model(images, placement.call_on(devices[-1], Head(config.classes), x))


def losses(output: tf.Tensor, batch: Batch) -> tf.Tensor:
    """Map logits of shape (n, classes) to per-sample float32 cross-entropy losses of shape (n,).

    The training loop minimizes the mean loss.
    """
    return tf.nn.sparse_softmax_cross_entropy_with_logits(batch.labels, output)


def metrics(output: tf.Tensor, batch: Batch) -> dict[str, tf.Tensor]:
    """Return all metrics except the loss. Each metric has shape (n,).

    The accuracy is 1 if the predicted class is correct, and 0 otherwise.
    """
    return {"accuracy": tf.cast(tf.argmax(output, axis=1) == batch.labels, tf.float32)}

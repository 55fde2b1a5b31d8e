"""A Vision Transformer: the file to replace first.

Source: Dosovitskiy et al., "An Image Is Worth 16x16 Words", 2020; pre-norm blocks, mean pooling in
place of a class token, no dropout. Layer normalization, never batch normalization: Keras 3 does not
average its moving statistics over the workers.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import keras
from keras import layers, ops

from trainer import placement
from trainer.errors import TrainerError


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


def build(
    size: str, image: tuple[int, int, int], patch: int, classes: int, devices: Sequence[str] = ("",)
) -> keras.Model:
    """A model from images (n, height, width, channels) in [0, 1] to logits (n, classes).

    Args:
        devices: of this machine, by TensorFlow's names, on which the blocks are placed in turn; "" leaves the
            placement to TensorFlow, as a strategy that copies the model to every device needs.

    Raises:
        TrainerError: the patch does not divide the image, or there are more devices than blocks.
    """
    if image[0] % patch or image[1] % patch:
        raise TrainerError(f"--patch is {patch}, must divide the image of {image[0]} x {image[1]} pixels")
    shape = SIZES[size]
    if len(devices) > shape.depth:
        raise TrainerError(f"--model-parallel is {len(devices)}, must be at most the {shape.depth} blocks of {size}")
    first, *others = placement.even(shape.depth, devices)
    images = keras.Input(image)
    x = placement.call_on(first, Embed(patch, shape.width), images)
    for device in (first, *others):
        x = placement.call_on(device, Block(shape.width, shape.heads), x)
    return keras.Model(images, placement.call_on(devices[-1], Head(classes), x))

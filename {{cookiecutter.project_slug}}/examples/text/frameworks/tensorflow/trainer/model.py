"""Yours to edit: the model, its loss, and its metrics. This example is a byte-level GPT, which predicts the next byte.

The training loop uses only `build`, `losses`, and `metrics`. Both `losses` and `metrics` return one number per sample,
which the training loop averages over the global batch.

Source: Radford et al., "Language Models are Unsupervised Multitask Learners", 2019. This model has pre-norm blocks,
learned position embeddings, and tied embedding and output weights (Press and Wolf, 2017). The model doesn't use
dropout.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import keras
import tensorflow as tf
from keras import layers, ops

from trainer.data import BYTES, Batch, DataFlags
from trainer.parallel import placement
from trainer.vertex.errors import TrainerError


@dataclass(frozen=True, kw_only=True)
class ModelFlags(DataFlags):
    """The model and data flags, which `Config` inherits."""

    size: Literal["tiny", "small", "base", "large", "xl"] = "tiny"
    """Model size. From smallest to largest, the models have about 0.2, 21, 85, 302, and 1,208 million parameters."""


def findings(config: ModelFlags) -> Iterator[str]:
    """Yield an error message, including the flag's name, for each invalid value."""
    yield from ()


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
    """A layer that transforms tokens of shape (n, tokens, width) without changing their shape.

    The output for a token doesn't depend on later tokens.
    """

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
        tokens = ops.shape(x)[1]
        q, k, v = ops.unstack(ops.reshape(self.qkv(x), (-1, tokens, *self.split)), axis=2)
        mixed = ops.dot_product_attention(q, k, v, is_causal=True)
        return self.out(ops.reshape(mixed, (-1, tokens, x.shape[2])))


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
    """A layer that adds position embeddings to byte embeddings.

    The layer maps bytes of shape (n, tokens) to vectors of shape (n, tokens, width). There are at most `context`
    tokens.
    """

    def __init__(self, width: int, context: int) -> None:
        super().__init__()
        # The vectors have length 1, so that the first logits vary by 1.
        self.weight, self.position = (
            self.add_weight(shape=(count, width), initializer=keras.initializers.RandomNormal(stddev=width**-0.5))
            for count in (BYTES, context)
        )

    def call(self, text: Any) -> Any:
        return ops.take(self.weight, text, axis=0) + self.position[: ops.shape(text)[1]]


class Head(layers.Layer):
    """A layer that computes the dot product of each normalized token with each byte's embedding.

    The layer maps tokens of shape (n, tokens, width) to logits of shape (n, tokens, 256). The logits are float32 even
    if other layers compute in bfloat16.
    """

    def __init__(self, embed: Embed) -> None:
        super().__init__(dtype="float32")
        self.embed = embed
        self.norm = layers.LayerNormalization(epsilon=1e-5, dtype="float32")

    def call(self, x: Any) -> Any:
        return tf.einsum("ntw,bw->ntb", self.norm(x), self.embed.weight)  # Keras's einsum transposes the matrix first


def build(config: ModelFlags, example: Batch, devices: Sequence[str] = ("",)) -> keras.Model:
    """Build the model for inputs shaped like `example.inputs`. Keras's random state determines the initial weights.

    Args:
        devices: the TensorFlow names of the local devices that hold the transformer blocks. If a name is empty (for
            example, because a strategy replicates the model on every device), TensorFlow chooses the device.

    Raises:
        TrainerError: If there are more devices than blocks.
    """
    size, context = SIZES[config.size], example.inputs.shape[1]
    if len(devices) > size.depth:
        raise TrainerError(f"--degree is {len(devices)}, but {config.size} has only {size.depth} blocks")
    first, *others = placement.even(size.depth, devices)
    text = keras.Input((None,), dtype="int32")
    embed = Embed(size.width, context)
    x = placement.call_on(first, embed, text)
    for device in (first, *others):
        x = placement.call_on(device, Block(size.width, size.heads), x)
    return keras.Model(text, placement.call_on(devices[-1], Head(embed), x))


def losses(output: tf.Tensor, batch: Batch) -> tf.Tensor:
    """Return each sample's mean cross-entropy in float32.

    The logits have shape (n, tokens, 256), and the losses have shape (n,).
    """
    return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(batch.targets, output), axis=1)


def metrics(output: tf.Tensor, batch: Batch) -> dict[str, tf.Tensor]:
    """Return all metrics except the loss.

    Each metric has shape (n,). The accuracy is the fraction of bytes that are predicted correctly.
    """
    right = tf.argmax(output, axis=2) == batch.targets
    return {"accuracy": tf.reduce_mean(tf.cast(right, tf.float32), axis=1)}

"""Yours to edit: the model, its loss, and its metrics. This example is a byte-level GPT, which predicts the next byte.

The training loop uses only `build`, `losses`, and `metrics`. Both `losses` and `metrics` return one number per sample,
which the training loop averages over the global batch.

Source: Radford et al., "Language Models are Unsupervised Multitask Learners", 2019. This model has pre-norm blocks,
learned position embeddings, and tied embedding and output weights (Press and Wolf, 2017). The model doesn't use
dropout.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from trainer.data import BYTES, Batch, DataFlags


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


class Attention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.head_width = width // heads
        # A bias on the keys has no gradient, because it doesn't change the softmax.
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Transform tokens of shape (n, tokens, width) without changing their shape.

        The output for a token depends only on that token and earlier ones.
        """
        # The rows of qkv are ordered by head, so a shard contains complete heads. `tensor_parts` relies on this order.
        q, k, v = self.qkv(x).unflatten(-1, (-1, 3, self.head_width)).permute(3, 0, 2, 1, 4)
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(mixed.transpose(1, 2).flatten(-2))


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        """Transform tokens of shape (n, tokens, width) without changing their shape."""
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class Embed(nn.Module):
    """A layer that adds position embeddings to byte embeddings."""

    def __init__(self, width: int, context: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(BYTES, width))
        self.position = nn.Parameter(torch.empty(context, width))
        for vectors in self.weight, self.position:
            nn.init.normal_(vectors, std=width**-0.5)  # length 1, so that the first logits vary by 1

    def forward(self, text: Tensor) -> Tensor:
        """Map bytes of shape (n, tokens) to vectors of shape (n, tokens, width). There are at most `context` tokens."""
        return functional.embedding(text, self.weight) + self.position[: text.shape[1]]


class Head(nn.Module):
    """A layer that computes the dot product of each normalized token with each byte's embedding."""

    def __init__(self, width: int, weight: nn.Parameter) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.weight = weight

    def forward(self, x: Tensor) -> Tensor:
        """Map tokens of shape (n, tokens, width) to logits of shape (n, tokens, 256)."""
        return functional.linear(self.norm(x), self.weight)


class GPT(nn.Module):
    """A model that predicts the next byte from at most `context` bytes.

    The model maps bytes of shape (n, tokens) to logits of shape (n, tokens, 256).

    Model parallelism requires some of the following attributes, but `--strategy ddp` requires none.

    Attributes:
        embed, blocks, head: the model's modules, in execution order. Each module has one input tensor and one output
            tensor. All blocks have the same structure.
        heads: the number of attention heads. For `--strategy tensor`, this number must be divisible by `--degree`.
        tensor_parts: the sharding plan of a block for `--strategy tensor`. In each pair of layers, the first layer's
            weights are sharded along the output dimension, and the second layer's along the input dimension. Therefore,
            each pair requires only one all-reduce.
            Source: Shoeybi et al., "Megatron-LM", 2019, section 3.
    """

    tensor_parts: ClassVar[dict[str, Literal["outputs", "inputs"]]] = {
        "attention.qkv": "outputs",
        "attention.out": "inputs",
        "mlp.0": "outputs",
        "mlp.2": "inputs",
    }

    def __init__(self, size: Size, context: int) -> None:
        super().__init__()
        self.heads = size.heads
        self.embed = Embed(size.width, context)
        self.blocks = nn.Sequential(*(Block(size.width, size.heads) for _ in range(size.depth)))
        self.head = Head(size.width, self.embed.weight)
        self.apply(initialize)

    def forward(self, text: Tensor) -> Tensor:
        return self.head(self.blocks(self.embed(text)))


def initialize(module: nn.Module) -> None:
    """Apply Glorot initialization to weights and set biases to zero."""
    if isinstance(module, nn.Linear):
        nn.init.xavier_uniform_(module.weight)
        if module.bias is not None:
            nn.init.zeros_(module.bias)


def build(config: ModelFlags, example: Batch) -> nn.Module:
    """Build the model for inputs shaped like `example.inputs`.

    PyTorch's random state determines the initial weights.
    """
    return GPT(SIZES[config.size], context=example.inputs.shape[1])


def losses(output: Tensor, batch: Batch) -> Tensor:
    """Return each sample's mean cross-entropy in float32.

    The logits have shape (n, tokens, 256), and the losses have shape (n,).
    """
    of_each = functional.cross_entropy(output.flatten(0, 1).float(), batch.targets.flatten(), reduction="none")
    return of_each.view_as(batch.targets).mean(dim=1)


def metrics(output: Tensor, batch: Batch) -> dict[str, Tensor]:
    """Return all metrics except the loss.

    Each metric has shape (n,). The accuracy is the fraction of bytes that are predicted correctly.
    """
    predicted = output.max(dim=2).indices  # argmax takes twice as long on a CPU
    return {"accuracy": (predicted == batch.targets).float().mean(dim=1)}

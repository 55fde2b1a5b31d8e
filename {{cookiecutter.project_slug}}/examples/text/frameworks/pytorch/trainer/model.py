"""YOURS: the model, its loss and its metrics. Here: a byte-level GPT that predicts the next byte.

The loop calls `build`, `losses` and `metrics`, and knows nothing else of the model. Losses and metrics are one number
per sample: sums, means and the division by the global batch are the loop's.

Source: Radford et al., "Language Models are Unsupervised Multitask Learners", 2019; pre-norm blocks, learned positions,
and one matrix that embeds bytes and reads them out (Press and Wolf, 2017). No dropout.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.distributed.tensor.parallel import ColwiseParallel, ParallelStyle, RowwiseParallel
from torch.nn import functional

from trainer.data import BYTES, Batch, DataFlags


@dataclass(frozen=True, kw_only=True)
class ModelFlags(DataFlags):
    """The flags of Config for the model, besides those of the data."""

    size: Literal["tiny", "small", "base", "large", "xl"] = "tiny"
    """Model size: about 0.2, 21, 85, 302 or 1,208 million parameters."""


def findings(config: ModelFlags) -> Iterator[str]:
    """Yield a phrase, which names the flag, for each wrong value."""
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
        # A bias on the keys has no gradient: the softmax does not see it.
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        """(n, tokens, width) -> the same shape; no token sees a later one."""
        # Ordered by head, so that a shard of the rows of qkv is a whole number of heads: `tensor_parts` relies on it.
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
        """(n, tokens, width) -> the same shape."""
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class Embed(nn.Module):
    """Each byte, as a vector, with its position."""

    def __init__(self, width: int, context: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(BYTES, width))
        self.position = nn.Parameter(torch.empty(context, width))
        for vectors in self.weight, self.position:
            nn.init.normal_(vectors, std=width**-0.5)  # of length 1, so that the first logits vary by 1

    def forward(self, text: Tensor) -> Tensor:
        """Bytes (n, tokens), at most `context` of them -> (n, tokens, width)."""
        return functional.embedding(text, self.weight) + self.position[: text.shape[1]]


class Head(nn.Module):
    """Likeness of each token to each byte, by the same vectors that embed them."""

    def __init__(self, width: int, weight: nn.Parameter) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.weight = weight

    def forward(self, x: Tensor) -> Tensor:
        """(n, tokens, width) -> logits (n, tokens, 256)."""
        return functional.linear(self.norm(x), self.weight)


class GPT(nn.Module):
    """Bytes (n, tokens), at most `context` of them -> logits (n, tokens, 256) of the byte after each.

    The strategies of model parallelism need some of these attributes; `--strategy ddp` alone needs none of them.

    Attributes:
        embed, blocks, head: run in this order, each with one tensor in and one tensor out; all blocks are alike.
        heads: of the attention; the degree of `--strategy tensor` must divide it.
        tensor_parts: how `--strategy tensor` shards a block: the first layer of a pair by its outputs, the second by
            its inputs, so that a pair needs one all-reduce. Source: Shoeybi et al., "Megatron-LM", 2019, section 3.
    """

    tensor_parts: ClassVar[dict[str, ParallelStyle]] = {
        "attention.qkv": ColwiseParallel(),
        "attention.out": RowwiseParallel(),
        "mlp.0": ColwiseParallel(),
        "mlp.2": RowwiseParallel(),
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
    """Glorot weights and zero biases."""
    if isinstance(module, nn.Linear):
        nn.init.xavier_uniform_(module.weight)
        if module.bias is not None:
            nn.init.zeros_(module.bias)


def build(config: ModelFlags, example: Batch) -> nn.Module:
    """The model for batches that look like the example; its weights follow from PyTorch's random state."""
    return GPT(SIZES[config.size], context=example.inputs.shape[1])


def losses(output: Tensor, batch: Batch) -> Tensor:
    """Return losses to minimize the mean of: logits (n, tokens, 256) -> cross-entropy of each sample, (n,), float32."""
    of_each = functional.cross_entropy(output.flatten(0, 1).float(), batch.targets.flatten(), reduction="none")
    return of_each.view_as(batch.targets).mean(dim=1)


def metrics(output: Tensor, batch: Batch) -> dict[str, Tensor]:
    """Return the metrics, reported besides the loss: the share of bytes that are guessed, (n,)."""
    return {"accuracy": (output.argmax(dim=2) == batch.targets).float().mean(dim=1)}

"""YOURS: the model, its loss and its metrics. Here: a Vision Transformer that classifies images.

The loop calls `build`, `losses` and `metrics`, and knows nothing else of the model. Losses and metrics are one number
per sample: sums, means and the division by the global batch are the loop's.

Source: Dosovitskiy et al., "An Image Is Worth 16x16 Words", 2020; pre-norm blocks, mean pooling in
place of a class token, no dropout.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.distributed.tensor.parallel import ColwiseParallel, ParallelStyle, RowwiseParallel
from torch.nn import functional

from trainer import flags
from trainer.data import Batch, DataFlags
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


class Attention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.head_width = width // heads
        # A bias on the keys has no gradient: the softmax does not see it.
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        """(n, tokens, width) -> the same shape."""
        # Ordered by head, so that a shard of the rows of qkv is a whole number of heads: `tensor_parts` relies on it.
        q, k, v = self.qkv(x).unflatten(-1, (-1, 3, self.head_width)).permute(3, 0, 2, 1, 4)
        mixed = functional.scaled_dot_product_attention(q, k, v)
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
    """Patches of the image, projected to tokens, with their positions."""

    def __init__(self, width: int, image: tuple[int, int, int], patch: int) -> None:
        super().__init__()
        height, across, channels = image
        self.patch = patch
        self.project = nn.Linear(patch * patch * channels, width)
        self.position = nn.Parameter(torch.randn((height // patch) * (across // patch), width) * 0.02)

    def forward(self, images: Tensor) -> Tensor:
        """Images (n, height, width, channels) in [0, 1] -> (n, tokens, width)."""
        return self.project(self.patches(images)) + self.position

    def patches(self, images: Tensor) -> Tensor:
        """(n, height, width, channels) -> (n, patches, patch * patch * channels)."""
        tiles = images.unflatten(2, (-1, self.patch)).unflatten(1, (-1, self.patch))
        return tiles.transpose(2, 3).flatten(3).flatten(1, 2)


class Head(nn.Module):
    """Mean over the tokens, then one linear layer."""

    def __init__(self, width: int, classes: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.out = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        """(n, tokens, width) -> logits (n, classes)."""
        return self.out(self.norm(x).mean(dim=1))


class VisionTransformer(nn.Module):
    """Images (n, height, width, channels) in [0, 1] -> logits (n, classes).

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

    def __init__(self, size: Size, image: tuple[int, int, int], patch: int, classes: int) -> None:
        super().__init__()
        self.heads = size.heads
        self.embed = Embed(size.width, image, patch)
        self.blocks = nn.Sequential(*(Block(size.width, size.heads) for _ in range(size.depth)))
        self.head = Head(size.width, classes)
        self.apply(initialize)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.blocks(self.embed(images)))


def initialize(module: nn.Module) -> None:
    """Glorot weights and zero biases, as in the paper's own code."""
    if isinstance(module, nn.Linear):
        nn.init.xavier_uniform_(module.weight)
        if module.bias is not None:
            nn.init.zeros_(module.bias)


def build(config: ModelFlags, example: Batch) -> nn.Module:
    """The model for batches that look like the example; its weights follow from PyTorch's random state.

    Raises:
        TrainerError: the patch does not divide the image.
    """
    height, width, channels = example.inputs.shape[1:]
    if height % config.patch or width % config.patch:
        raise TrainerError(f"--patch is {config.patch}, must divide the image of {height} x {width} pixels")
    return VisionTransformer(SIZES[config.size], (height, width, channels), config.patch, config.classes)


def losses(output: Tensor, batch: Batch) -> Tensor:
    """Return losses to minimize the mean of: logits (n, classes) -> cross-entropy of each sample, (n,), float32."""
    return functional.cross_entropy(output.float(), batch.labels, reduction="none")


def metrics(output: Tensor, batch: Batch) -> dict[str, Tensor]:
    """Return the metrics, reported besides the loss: logits (n, classes) -> 1 for a right answer, else 0, (n,)."""
    return {"accuracy": (output.argmax(dim=1) == batch.labels).float()}

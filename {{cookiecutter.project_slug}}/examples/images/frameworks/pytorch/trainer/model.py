"""Yours to edit: the model, its loss, and its metrics. This example is a Vision Transformer, which classifies images.

The training loop uses only `build`, `losses`, and `metrics`. Both `losses` and `metrics` return one number per sample,
which the training loop averages over the global batch.

Source: Dosovitskiy et al., "An Image Is Worth 16x16 Words", 2020. This model has pre-norm blocks, uses mean pooling
instead of a class token, and doesn't use dropout.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from trainer import flags
from trainer.data import Batch, DataFlags
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


class Attention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.head_width = width // heads
        # A bias on the keys has no gradient, because it doesn't change the softmax.
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Transform tokens of shape (n, tokens, width) without changing their shape."""
        # The rows of qkv are ordered by head, so a shard contains complete heads. `tensor_parts` relies on this order.
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
        """Transform tokens of shape (n, tokens, width) without changing their shape."""
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class Embed(nn.Module):
    """A layer that projects image patches to tokens and adds position embeddings."""

    def __init__(self, width: int, image: tuple[int, int, int], patch: int) -> None:
        super().__init__()
        height, across, channels = image
        self.patch = patch
        self.project = nn.Linear(patch * patch * channels, width)
        self.position = nn.Parameter(torch.randn((height // patch) * (across // patch), width) * 0.02)

    def forward(self, images: Tensor) -> Tensor:
        """Map images of shape (n, height, width, channels) to tokens of shape (n, tokens, width)."""
        return self.project(self.patches(images)) + self.position

    def patches(self, images: Tensor) -> Tensor:
        """Split images into patches of shape (n, patches, patch * patch * channels)."""
        tiles = images.unflatten(2, (-1, self.patch)).unflatten(1, (-1, self.patch))
        return tiles.transpose(2, 3).flatten(3).flatten(1, 2)


class Head(nn.Module):
    """A layer that averages the tokens and computes the logits from the mean."""

    def __init__(self, width: int, classes: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.out = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Map tokens of shape (n, tokens, width) to logits of shape (n, classes)."""
        return self.out(self.norm(x).mean(dim=1))


class VisionTransformer(nn.Module):
    """A model that maps images to logits of shape (n, classes).

    Images have shape (n, height, width, channels) and pixel values from 0 to 1.

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
    """Apply Glorot initialization to weights and set biases to zero. The paper's official code does the same."""
    if isinstance(module, nn.Linear):
        nn.init.xavier_uniform_(module.weight)
        if module.bias is not None:
            nn.init.zeros_(module.bias)


def build(config: ModelFlags, example: Batch) -> nn.Module:
    """Build the model for inputs shaped like `example.inputs`. PyTorch's random state determines the initial weights.

    Raises:
        TrainerError: If the image size isn't divisible by the patch size.
    """
    height, width, channels = example.inputs.shape[1:]
    if height % config.patch or width % config.patch:
        raise TrainerError(f"--patch {config.patch} doesn't evenly divide the image height {height} and width {width}")
    return VisionTransformer(SIZES[config.size], (height, width, channels), config.patch, config.classes)


def losses(output: Tensor, batch: Batch) -> Tensor:
    """Map logits of shape (n, classes) to per-sample float32 cross-entropy losses of shape (n,).

    The training loop minimizes the mean loss.
    """
    return functional.cross_entropy(output.float(), batch.labels, reduction="none")


def metrics(output: Tensor, batch: Batch) -> dict[str, Tensor]:
    """Return all metrics except the loss. Each metric has shape (n,).

    The accuracy is 1 if the predicted class is correct, and 0 otherwise.
    """
    return {"accuracy": (output.argmax(dim=1) == batch.labels).float()}

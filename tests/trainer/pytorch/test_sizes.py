"""An exported model accepts all sizes of its inputs that the model doesn't fix."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from trainer import export

IMAGES = torch.randn(4, 8, 8, 3)


class Pooled(nn.Module):
    """Any image: the mean over all pixels."""

    def forward(self, images: Tensor) -> Tensor:
        return images.mean(dim=(1, 2))


class Square(nn.Module):
    """Any image that is as high as it is wide."""

    def forward(self, images: Tensor) -> Tensor:
        return (images + images.transpose(1, 2)).mean(dim=(1, 2))


class Large(nn.Module):
    """Any image of at least 8 x 8 pixels."""

    def forward(self, images: Tensor) -> Tensor:
        return nn.functional.avg_pool2d(images.permute(0, 3, 1, 2), 8).mean(dim=(2, 3))


class Fixed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8 * 8 * 3, 2)

    def forward(self, images: Tensor) -> Any:
        return self.layer(images.flatten(1))


@pytest.mark.parametrize(
    ("net", "sizes"), [(Pooled(), {1, 2, 3}), (Square(), {1, 2, 3}), (Large(), {1, 2, 3}), (Fixed(), set())]
)
def test_the_sizes_that_a_model_does_not_fix_are_found(net: nn.Module, sizes: set[int]) -> None:
    assert export.varying(net, IMAGES[:2]) == sizes


@pytest.mark.parametrize(("net", "width"), [(Pooled(), 9), (Square(), 12)])
def test_an_exported_model_answers_for_images_of_other_sizes(net: nn.Module, width: int, tmp_path: Path) -> None:
    answer = export.export(net, IMAGES, tmp_path)
    for shape in ((1, 8, 8, 3), (3, 12, width, 3)):
        images = torch.randn(shape)
        assert torch.allclose(torch.from_numpy(answer(images.numpy())), net(images), atol=1e-5)

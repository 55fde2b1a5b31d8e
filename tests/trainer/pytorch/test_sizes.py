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


class Between(nn.Module):
    """Any image of 6 to 8 pixels in height."""

    def forward(self, images: Tensor) -> Tensor:
        return nn.functional.avg_pool2d(images + torch.ones(8, 1, 1)[: images.shape[1]], (6, 1)).mean(dim=(1, 2))


class InQuarters(nn.Module):
    """Any image of 4 or 8 pixels in height."""

    def forward(self, images: Tensor) -> Tensor:
        quarters = images.unflatten(1, (-1, 4))
        return (quarters + torch.ones(2, 4, 1, 1)[: quarters.shape[1]]).mean(dim=(1, 2, 3))


class Remembering(nn.Module):
    """Any image, whose last width the model remembers; it also counts its images."""

    def __init__(self) -> None:
        super().__init__()
        self.table = torch.ones(0)
        self.register_buffer("count", torch.zeros(()))

    def forward(self, images: Tensor) -> Tensor:
        self.count += 1
        if len(self.table) != images.shape[2]:
            self.table = torch.arange(images.shape[2]).cos()
        return (images * self.table[:, None]).mean(dim=(1, 2))


ANY = {1, 2, 3}
OF_EACH = [(Pooled(), ANY), (Square(), ANY), (Large(), ANY), (Between(), ANY), (InQuarters(), ANY), (Fixed(), set())]


@pytest.mark.parametrize(("net", "sizes"), OF_EACH)
def test_the_sizes_that_a_model_does_not_fix_are_found(net: nn.Module, sizes: set[int]) -> None:
    assert export.varying(net, IMAGES[:2]) == sizes


def test_the_search_for_sizes_does_not_change_the_model() -> None:
    net = Remembering()
    assert export.varying(net, IMAGES[:2]) == ANY
    assert (float(net.count), len(net.table)) == (0, 0)


@pytest.mark.parametrize(("net", "width"), [(Pooled(), 9), (Square(), 12), (Remembering(), 9)])
def test_an_exported_model_answers_for_images_of_other_sizes(net: nn.Module, width: int, tmp_path: Path) -> None:
    answer = export.export(net, IMAGES, tmp_path)
    for shape in ((1, 8, 8, 3), (3, 12, width, 3)):
        images = torch.randn(shape)
        assert torch.allclose(torch.from_numpy(answer(images.numpy())), net(images), atol=1e-5)

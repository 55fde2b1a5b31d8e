import pytest
import torch

from trainer import model
from trainer.errors import TrainerError

DIGITS = (8, 8, 1)


@pytest.mark.parametrize(("size", "millions"), [("tiny", 0.2), ("small", 21), ("base", 86), ("large", 303)])
def test_each_size_has_as_many_parameters_as_its_flag_says(size: str, millions: float) -> None:
    with torch.device("meta"):
        net = model.build(size, DIGITS, patch=2, classes=10)
    assert sum(p.numel() for p in net.parameters()) / 1e6 == pytest.approx(millions, rel=0.03)


def test_images_become_logits() -> None:
    net = model.build("tiny", (8, 12, 3), patch=4, classes=7)
    assert net(torch.rand(5, 8, 12, 3)).shape == (5, 7)


def test_patches_are_squares_of_the_image() -> None:
    net = model.build("tiny", (4, 4, 1), patch=2, classes=2)
    image = torch.arange(16.0).reshape(1, 4, 4, 1)
    assert net.embed.patches(image).tolist() == [[[0, 1, 4, 5], [2, 3, 6, 7], [8, 9, 12, 13], [10, 11, 14, 15]]]


def test_a_patch_must_divide_the_image() -> None:
    with pytest.raises(TrainerError, match="--patch is 3, must divide the image of 8 x 8 pixels"):
        model.build("tiny", DIGITS, patch=3, classes=10)

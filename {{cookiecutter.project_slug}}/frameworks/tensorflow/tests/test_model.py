import numpy as np
import pytest

from trainer import model
from trainer.errors import TrainerError

DIGITS = (8, 8, 1)


@pytest.mark.parametrize(("size", "millions"), [("tiny", 0.2), ("small", 21), ("base", 86)])
def test_each_size_has_as_many_parameters_as_its_flag_says(size: str, millions: float) -> None:
    net = model.build(size, DIGITS, patch=2, classes=10)
    assert net.count_params() / 1e6 == pytest.approx(millions, rel=0.03)


def test_images_become_logits() -> None:
    net = model.build("tiny", (8, 12, 3), patch=4, classes=7)
    assert net(np.zeros((5, 8, 12, 3), np.float32)).shape == (5, 7)


def test_patches_are_squares_of_the_image() -> None:
    embed = model.Embed(patch=2, width=4)
    embed(np.zeros((1, 4, 4, 1), np.float32))
    embed.project.set_weights([np.eye(4), np.zeros(4)])
    embed.position.assign(np.zeros((4, 4)))
    image = np.arange(16, dtype=np.float32).reshape(1, 4, 4, 1)
    assert embed(image).numpy().tolist() == [[[0, 1, 4, 5], [2, 3, 6, 7], [8, 9, 12, 13], [10, 11, 14, 15]]]


def test_a_patch_must_divide_the_image() -> None:
    with pytest.raises(TrainerError, match="--patch is 3, must divide the image of 8 x 8 pixels"):
        model.build("tiny", DIGITS, patch=3, classes=10)

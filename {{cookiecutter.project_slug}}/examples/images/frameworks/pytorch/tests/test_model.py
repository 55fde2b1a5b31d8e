"""Yours to edit: tests of the model, its loss, and its metrics."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from trainer import model
from trainer.config import Config, findings
from trainer.data import Batch
from trainer.vertex.errors import TrainerError


def images(*shape: int) -> Batch:
    """Return a batch of blank samples."""
    return Batch(np.zeros(shape, np.float32), np.zeros(shape[0], np.int64))


def labeled(*labels: int) -> Batch:
    return Batch(torch.zeros(len(labels), 8, 8, 1), torch.tensor(labels))


@pytest.mark.parametrize(("size", "millions"), [("tiny", 0.2), ("small", 21), ("base", 86), ("large", 303)])
def test_each_size_has_as_many_parameters_as_its_flag_says(size: str, millions: float) -> None:
    with torch.device("meta"):
        net = model.build(Config(size=size), images(1, 8, 8, 1))  # type: ignore[arg-type]
    assert sum(p.numel() for p in net.parameters()) / 1e6 == pytest.approx(millions, rel=0.03)


def test_images_become_logits() -> None:
    net = model.build(Config(patch=4, classes=7), images(1, 8, 12, 3))
    assert net(torch.rand(5, 8, 12, 3)).shape == (5, 7)


def test_patches_are_squares_of_the_image() -> None:
    embed = model.Embed(width=4, image=(4, 4, 1), patch=2)
    image = torch.arange(16.0).reshape(1, 4, 4, 1)
    assert embed.patches(image).tolist() == [[[0, 1, 4, 5], [2, 3, 6, 7], [8, 9, 12, 13], [10, 11, 14, 15]]]


def test_a_patch_must_divide_the_image() -> None:
    with pytest.raises(TrainerError, match="--patch 3 doesn't evenly divide the image height 8 and width 8"):
        model.build(Config(patch=3), images(1, 8, 8, 1))
    assert list(findings(Config(patch=0))) == ["--patch is 0, but it must be at least 1"]


def logits(*answers: int) -> Tensor:
    """Return logits that make each of these classes twice as likely as each of the other two classes."""
    return torch.eye(3)[list(answers)] * math.log(2)


def test_losses_and_metrics_are_one_number_per_sample() -> None:
    batch = labeled(0, 1)
    assert model.losses(logits(0, 2), batch).tolist() == pytest.approx([np.log(2), np.log(4)])
    assert {name: of_each.tolist() for name, of_each in model.metrics(logits(0, 2), batch).items()} == {
        "accuracy": [1, 0]
    }

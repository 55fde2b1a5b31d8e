"""Yours to edit: tests of the model, its loss, and its metrics."""

import numpy as np
import pytest
import tensorflow as tf

from trainer import model
from trainer.config import Config, findings
from trainer.data import Batch
from trainer.vertex.errors import TrainerError


def images(*shape: int) -> Batch:
    """Return a batch of blank samples."""
    return Batch(np.zeros(shape, np.float32), np.zeros(shape[0], np.int64))


def labeled(*labels: int) -> Batch:
    return Batch(tf.zeros((len(labels), 8, 8, 1)), tf.constant(labels, tf.int64))


@pytest.mark.parametrize(("size", "millions"), [("tiny", 0.2), ("small", 21), ("base", 86)])
def test_each_size_has_as_many_parameters_as_its_flag_says(size: str, millions: float) -> None:
    net = model.build(Config(size=size), images(1, 8, 8, 1))  # type: ignore[arg-type]
    assert net.count_params() / 1e6 == pytest.approx(millions, rel=0.03)


def test_images_become_logits() -> None:
    net = model.build(Config(patch=4, classes=7), images(1, 8, 12, 3))
    assert net(np.zeros((5, 8, 12, 3), np.float32)).shape == (5, 7)


def test_patches_are_squares_of_the_image() -> None:
    embed = model.Embed(patch=2, width=4)
    embed(np.zeros((1, 4, 4, 1), np.float32))
    embed.project.set_weights([np.eye(4), np.zeros(4)])
    embed.position.assign(np.zeros((4, 4)))
    image = np.arange(16, dtype=np.float32).reshape(1, 4, 4, 1)
    assert embed(image).numpy().tolist() == [[[0, 1, 4, 5], [2, 3, 6, 7], [8, 9, 12, 13], [10, 11, 14, 15]]]


def test_a_patch_must_divide_the_image() -> None:
    with pytest.raises(TrainerError, match="--patch 3 doesn't evenly divide the image height 8 and width 8"):
        model.build(Config(patch=3), images(1, 8, 8, 1))
    assert list(findings(Config(patch=0))) == ["--patch is 0, but it must be at least 1"]


def logits(*answers: int) -> tf.Tensor:
    """Return logits that make each of these classes twice as likely as each of the other two classes."""
    return tf.one_hot(answers, 3) * np.log(2)


def test_losses_and_metrics_are_one_number_per_sample() -> None:
    batch = labeled(0, 1)
    assert model.losses(logits(0, 2), batch).numpy().tolist() == pytest.approx([np.log(2), np.log(4)])
    assert {name: of_each.numpy().tolist() for name, of_each in model.metrics(logits(0, 2), batch).items()} == {
        "accuracy": [1, 0]
    }

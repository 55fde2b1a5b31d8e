"""Yours to edit: tests of the model, its loss, and its metrics."""

import math

import keras
import numpy as np
import pytest
import tensorflow as tf

from trainer import model
from trainer.config import Config
from trainer.data import BYTES, Batch

CONTEXT = 16


def text(count: int, length: int = CONTEXT) -> Batch:
    """Return a batch of random samples."""
    drawn = np.random.default_rng(0).integers(0, BYTES, (count, length + 1))
    return Batch(drawn[:, :-1].astype(np.int32), drawn[:, 1:])


def tiny() -> keras.Model:
    keras.utils.set_random_seed(0)
    return model.build(Config(), text(1))


@pytest.mark.parametrize(("size", "millions"), [("tiny", 0.22), ("small", 21), ("base", 85)])
def test_each_size_has_as_many_parameters_as_its_flag_says(size: str, millions: float) -> None:
    net = model.build(Config(size=size), text(1, 64))  # type: ignore[arg-type]
    assert net.count_params() / 1e6 == pytest.approx(millions, rel=0.03)


def test_bytes_become_logits_of_the_byte_after_each_for_any_length_up_to_the_context() -> None:
    for length in (1, 7, CONTEXT):
        assert tiny()(text(3, length).inputs).shape == (3, length, BYTES)


def test_no_byte_sees_a_later_one() -> None:
    net, inputs = tiny(), text(2).inputs
    changed = inputs.copy()
    changed[:, 9] = (changed[:, 9] + 1) % BYTES
    before, after = net(inputs).numpy(), net(changed).numpy()
    assert before[:, :9] == pytest.approx(after[:, :9], abs=1e-6)
    assert not np.allclose(before[:, 9:], after[:, 9:])


def test_one_matrix_embeds_bytes_and_reads_them_out() -> None:
    net = tiny()
    (embed,) = (layer for layer in net.layers if isinstance(layer, model.Embed))
    (head,) = (layer for layer in net.layers if isinstance(layer, model.Head))
    assert head.embed is embed
    assert len(net.trainable_variables) == len({id(variable) for variable in net.trainable_variables})


def answered(*answers: int) -> tf.Tensor:
    """Return logits that make each byte of a text three times as likely as all other bytes together."""
    return tf.one_hot([answers], BYTES) * math.log(3 * (BYTES - 1))


def test_losses_and_metrics_are_one_number_per_sample() -> None:
    batch = Batch(tf.zeros((1, 2)), tf.constant([[65, 66]], tf.int64))
    right, wrong = -math.log(3 / 4), -math.log(1 / 4 / (BYTES - 1))
    for output, loss, accuracy in ((answered(65, 66), right, 1.0), (answered(65, 0), (right + wrong) / 2, 0.5)):
        assert model.losses(output, batch).numpy().tolist() == pytest.approx([loss], rel=1e-5)
        found = {name: of_each.numpy().tolist() for name, of_each in model.metrics(output, batch).items()}
        assert found == {"accuracy": [accuracy]}

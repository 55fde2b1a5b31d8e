"""The digest by which copies of a model are compared."""

import numpy as np
import pytest
import tensorflow as tf

from trainer.checkpoints.divergence import digest

TYPES = ["float32", "float16", "float64", "int64"]


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("shape", [(), (7,), (5, 7), (2, 5, 7)])
def test_a_tensor_has_one_digest_and_another_value_another(shape: tuple[int, ...], dtype: str) -> None:
    array = np.asarray(np.random.default_rng(0).random(shape) * 9 - 4, dtype)
    first = digest(tf.constant(array))
    assert first == digest(tf.Variable(array))
    for place in range(array.size):
        other = bytearray(array.tobytes())
        other[place * array.itemsize] ^= 1
        assert digest(tf.constant(np.frombuffer(bytes(other), dtype).reshape(shape))) != first


def test_two_numbers_that_change_places_show() -> None:
    array = np.arange(35, dtype=np.float32)
    digests = {int(digest(tf.constant(array.reshape(5, 7))))}
    for place in range(1, 35):
        swapped = array.copy()
        swapped[[0, place]] = swapped[[place, 0]]
        digests.add(int(digest(tf.constant(swapped.reshape(5, 7)))))
    assert len(digests) == 35


@pytest.mark.parametrize("dtype", ["float32", "float16", "float64"])
@pytest.mark.parametrize("shape", [(2,), (4, 6), (64, 64)])
def test_signs_that_change_together_show(shape: tuple[int, ...], dtype: str) -> None:
    array = np.asarray(np.random.default_rng(0).standard_normal(shape), dtype)
    assert digest(tf.constant(-array)) != digest(tf.constant(array))

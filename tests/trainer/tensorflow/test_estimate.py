"""What `trainer.describe` prints is what a real step on the CPU has."""

from collections.abc import Callable
from dataclasses import replace
from typing import Literal

import keras
import pytest
import tensorflow as tf

from tests.samples import EXAMPLE, batch
from trainer import model
from trainer.config import Config
from trainer.describe import estimate
from trainer.step.state import new_optimizer

Precision = Literal["auto", "float32", "bfloat16"]

CONFIG = Config()
SMALL = 100 if EXAMPLE == "digits" else 20  # masks of attention count as copies of weights, as no sample decides them


def test_parameters_gradients_and_moments_are_those_of_a_real_step() -> None:
    description = estimate.describe(CONFIG, batch(1))
    net, some = model.build(CONFIG, batch(1)), batch(3)  # in float32: the policy is what it was
    optimizer = new_optimizer(CONFIG, net.trainable_variables)
    with tf.GradientTape() as tape:
        total = tf.reduce_sum(model.losses(net(some.inputs), some))
    gradients = tape.gradient(total, net.trainable_variables)
    assert description.parameters == sum(weight.numpy().size for weight in net.weights)
    assert description.gradient_bytes == sum(gradient.numpy().nbytes for gradient in gradients)
    moments = [v.numpy() for v in optimizer.variables if v.path.endswith(("_momentum", "_velocity"))]
    assert description.optimizer_bytes == sum(moment.nbytes for moment in moments)


@pytest.mark.proof
@pytest.mark.parametrize(
    ("precision", "said"), [("auto", "bfloat16"), ("bfloat16", "bfloat16"), ("float32", "float32")]
)
def test_the_precision_is_the_one_of_the_flag(precision: Precision, said: str) -> None:
    description = estimate.describe(replace(CONFIG, precision=precision), batch(1))
    assert description.precision == said
    assert (description.weight_copy_bytes < description.parameter_bytes / SMALL) == (said == "float32")


@pytest.mark.proof
@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16"])
def test_the_policy_stays_what_it_was(policy: str) -> None:
    with estimate.computing_in(policy):
        estimate.describe(CONFIG, batch(1))
        assert keras.config.dtype_policy().name == policy


def ones(*shape: int) -> tf.Tensor:
    return tf.ones(shape)


PRODUCTS: list[tuple[Callable[[], tf.Tensor], int]] = [
    (lambda: tf.matmul(ones(3, 4), ones(4, 5)), 2 * 3 * 4 * 5),
    (lambda: tf.matmul(ones(4, 3), ones(5, 4), transpose_a=True, transpose_b=True), 2 * 3 * 4 * 5),
    (lambda: tf.matmul(ones(7, 4, 3), ones(7, 4, 5), transpose_a=True), 7 * 2 * 3 * 4 * 5),
    (lambda: tf.einsum("bij,bjk->bik", ones(7, 3, 4), ones(7, 4, 5)), 7 * 2 * 3 * 4 * 5),
    (lambda: tf.einsum("...j,jk->...k", ones(7, 3, 4), ones(4, 5)), 7 * 2 * 3 * 4 * 5),
    (lambda: tf.nn.conv2d(ones(1, 8, 8, 3), ones(2, 2, 3, 5), strides=2, padding="VALID"), 2 * 4 * 4 * 2 * 2 * 3 * 5),
    (lambda: tf.nn.gelu(ones(3, 4)), 0),
]


@pytest.mark.parametrize(("product", "flops"), PRODUCTS, ids=range(len(PRODUCTS)))
def test_a_multiply_add_counts_as_two(product: Callable[[], tf.Tensor], flops: int) -> None:
    with tf.Graph().as_default() as graph:
        product()
    assert sum(map(estimate.flops, graph.get_operations())) == flops


def test_a_backward_pass_takes_twice_the_forward_pass() -> None:
    with tf.Graph().as_default() as graph:
        images, kernel, weights = ones(1, 8, 8, 3), ones(3, 3, 3, 5), ones(5, 2)
        with tf.GradientTape() as tape:
            tape.watch([images, kernel, weights])
            features = tf.nn.conv2d(images, kernel, strides=1, padding="SAME")
            total = tf.reduce_sum(tf.matmul(tf.reduce_mean(features, (1, 2)), weights))
        forward = graph.get_operations()
        tape.gradient(total, [images, kernel, weights])
        backward = graph.get_operations()[len(forward) :]
    assert sum(map(estimate.flops, backward)) == 2 * sum(map(estimate.flops, forward)) > 0


def test_kept_is_what_the_backward_pass_reads_each_once() -> None:
    with tf.Graph().as_default() as graph:
        images, weights = ones(1, 6, 4), tf.Variable(ones(4, 5))
        with tf.GradientTape() as tape:
            half = tf.cast(weights, tf.bfloat16)  # a copy, of 4 x 5 x 2 bytes
            product = tf.matmul(tf.reshape(tf.cast(images, tf.bfloat16), (6, 4)), half)  # reads 6 x 4 x 2 bytes
            total = tf.reduce_sum(tf.tanh(tf.reshape(product, (1, 6, 5))))  # keeps its result, 6 x 5 x 2 bytes
        forward = graph.get_operations()
        tape.gradient(total, [weights])
        backward = graph.get_operations()[len(forward) :]
    # Nobody asks for the gradient of the images, so the copy of the weights is not read again.
    assert estimate.kept_bytes(forward, backward, [images.op]) == (0, 6 * 4 * 2 + 6 * 5 * 2)

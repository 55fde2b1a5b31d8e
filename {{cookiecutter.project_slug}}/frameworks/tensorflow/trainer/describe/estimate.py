"""Estimates a run's resource requirements from a graph that is built but never executed.

The estimate doesn't require a GPU.
"""

import contextlib
import json
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import keras
import tensorflow as tf

from trainer import model
from trainer.cluster.devices import LOW
from trainer.config import Config
from trainer.data import Batch
from trainer.step.state import new_optimizer

VIEWS = {"ExpandDims", "Identity", "Reshape", "Squeeze", "StopGradient"}  # the result shares the input's memory
# Positions of the kernel and the result in the list of inputs and outputs. The last element is the output.
CONVOLUTIONS = {"Conv2D": (1, -1), "Conv2DBackpropInput": (1, 2), "Conv2DBackpropFilter": (-1, 2)}
STORED = {"Const", "ReadVariableOp"}  # the result is always in memory


@dataclass(frozen=True, kw_only=True)
class ResourceEstimate:
    """The parameter count, FLOPs, and memory requirements of a run.

    The estimate uses the real model and optimizer without allocating memory. Sizes are in bytes per GPU. The required
    GPU memory is about the sum of all sizes, plus memory for the framework's own buffers. For this sum, multiply each
    per-sample size by the number of samples in a micro-batch.
    """

    parameters: int
    """The number of trained parameters."""
    parameter_bytes: int
    gradient_bytes: int
    """The number of bytes that each step all-reduces."""
    optimizer_bytes: int
    """The size of AdamW's moments."""
    flops_per_sample: int
    """The FLOPs of the matrix products and convolutions in the forward and backward passes.

    A multiply-add counts as two FLOPs.
    """
    precision: str
    """The compute dtype. Only A100, L4, and newer GPUs support bfloat16. Other GPUs compute in float32."""
    weight_copy_bytes: int
    """The size of the weight copies in `precision`. GPUs that compute in float32 don't need copies."""
    activation_bytes_per_sample: int
    """The estimated size of the activations stored for the backward pass, if the GPU computes in `precision`."""
    activation_bytes_per_sample_float32: int
    """The estimated size of the activations stored for the backward pass, if the GPU computes in float32."""
    global_batch: int
    """The number of samples per step, across all GPUs."""
    micro_batches: int
    """The number of micro-batches per step on each GPU."""

    def to_json(self) -> str:
        """Return the estimate as one line of JSON, without a newline."""
        return json.dumps(asdict(self))


def describe(config: Config, example: Batch) -> ResourceEstimate:
    """Estimate the resource requirements of a single-sample training step, based on a graph that isn't executed.

    Raises:
        TrainerError: if the model can't be built from the flags and the data.
    """
    with computing_in("float32" if config.precision == "float32" else LOW):
        description = _describe(config, example)
    with computing_in("float32"):
        exact = _describe(config, example)
    return replace(description, activation_bytes_per_sample_float32=exact.activation_bytes_per_sample)


def flops_per_sample(config: Config, example: Batch) -> int:
    """Return the FLOPs of the matrix products and convolutions in the forward and backward passes for one sample."""
    return _describe(config, example).flops_per_sample


@contextlib.contextmanager
def computing_in(policy: str) -> Iterator[None]:
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(policy)
    try:
        yield
    finally:
        keras.config.set_dtype_policy(before)


def _describe(config: Config, example: Batch) -> ResourceEstimate:
    """Estimate a step's resource requirements under Keras's current dtype policy."""
    with tf.Graph().as_default() as graph:
        net = model.build(config, example)
        # Use placeholders, because TensorFlow would evaluate constants while it builds the graph.
        sample = Batch(*(tf.compat.v1.placeholder(array.dtype, array.shape) for array in example))
        with tf.GradientTape() as tape:
            total = tf.reduce_sum(model.losses(net(sample.inputs, training=True), sample))
        forward = graph.get_operations()
        gradients = tape.gradient(total, net.trainable_variables)
        backward = graph.get_operations()[len(forward) :]
        optimizer = new_optimizer(config, net.trainable_variables)
    copies, activations = kept_bytes(forward, backward, [array.op for array in sample])
    return ResourceEstimate(
        parameters=net.count_params(),
        parameter_bytes=total_bytes(net.weights),
        gradient_bytes=total_bytes(gradients),
        optimizer_bytes=total_bytes(v for v in optimizer.variables if len(v.shape)),  # steps and rates aren't
        flops_per_sample=sum(map(flops, forward + backward)),
        precision=keras.config.dtype_policy().compute_dtype,
        weight_copy_bytes=copies,
        activation_bytes_per_sample=activations,
        activation_bytes_per_sample_float32=activations,
        global_batch=config.global_batch,
        micro_batches=config.micro_batches,
    )


def kept_bytes(
    forward: Sequence[tf.Operation], backward: Sequence[tf.Operation], sample: Sequence[tf.Operation]
) -> tuple[int, int]:
    """Return the sizes, in bytes, of the weight copies and of the activations that one sample's backward pass requires.

    TensorFlow frees a tensor after its last use. Therefore, the result includes only forward-pass tensors that the
    backward pass uses.
    """
    ours, varying = set(forward), set(sample)
    for op in forward:  # an operation follows the operations that it needs
        if any(tensor.op in varying for tensor in op.inputs):
            varying.add(op)
    used = [memory(tensor) for op in backward for tensor in op.inputs if tensor.op in ours]
    kept = {tensor.name: tensor for tensor in used}.values()
    copies = (tensor for tensor in kept if tensor.op not in varying and tensor.op.type not in STORED)
    return total_bytes(copies), total_bytes(tensor for tensor in kept if tensor.op in varying)


def memory(tensor: tf.Tensor) -> tf.Tensor:
    """Return the tensor that owns the memory of `tensor`. A view uses the memory of another tensor."""
    while tensor.op.type in VIEWS:
        tensor = tensor.op.inputs[0]
    return tensor


def flops(op: tf.Operation) -> int:
    """Return the FLOPs of a matrix product or a convolution. For any other operation, including loops, return 0."""
    shapes: list[Sequence[int]] = [tensor.shape for tensor in (*op.inputs, *op.outputs)]
    if op.type == "Einsum":
        terms = op.get_attr("equation").decode().partition("->")[0].split(",")
        named = [zip(labels(term, len(shape)), shape, strict=True) for term, shape in zip(terms, shapes, strict=False)]
        return 2 * math.prod(dict(pair for pairs in named for pair in pairs).values())
    if op.type in ("MatMul", "BatchMatMul", "BatchMatMulV2", "BatchMatMulV3"):
        turned = op.get_attr("transpose_a" if op.type == "MatMul" else "adj_x")
        return 2 * math.prod(shapes[-1]) * shapes[0][-2 if turned else -1]
    if op.type in CONVOLUTIONS:
        kernel, result = (shapes[i] for i in CONVOLUTIONS[op.type])
        return 2 * math.prod(kernel) * math.prod(result) // kernel[-1]
    return 0


def labels(term: str, rank: int) -> list[str]:
    """Return the dimension labels of one term in an einsum equation.

    An ellipsis in the term represents the remaining dimensions.
    """
    head, _, tail = term.partition("...")
    return [*head, *map(str, range(rank - len(head) - len(tail))), *tail]


def total_bytes(tensors: Iterable[Any]) -> int:
    return sum(math.prod(one.shape) * tf.as_dtype(one.dtype).size for one in tensors)

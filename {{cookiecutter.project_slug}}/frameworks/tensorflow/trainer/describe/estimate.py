"""Estimate of the resources of a run, read from a graph that is built and never run: no GPU, no weights."""

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

VIEWS = {"ExpandDims", "Identity", "Reshape", "Squeeze", "StopGradient"}  # their result is their input's memory
# Where the kernel and what it gives stand among the inputs, or at the end, the outputs.
CONVOLUTIONS = {"Conv2D": (1, -1), "Conv2DBackpropInput": (1, 2), "Conv2DBackpropFilter": (-1, 2)}
STORED = {"Const", "ReadVariableOp"}  # their result is there all the time


@dataclass(frozen=True, kw_only=True)
class ResourceEstimate:
    """Counts, and bytes on one GPU, all from the model and the optimizer as they are; nothing is allocated for it.

    On a GPU, memory is about the sum of all the bytes here, those per sample times the samples of one micro-batch.
    A framework's own buffers come on top.
    """

    parameters: int
    """Trained parameters."""
    parameter_bytes: int
    gradient_bytes: int
    """Bytes that each step all-reduces."""
    optimizer_bytes: int
    """Moments of AdamW."""
    flops_per_sample: int
    """Floating point operations of matrix products and convolutions, forward and backward, a multiply-add being two."""
    precision: str
    """Compute dtype of GPUs that have it: bfloat16 from A100 and L4 on; the other GPUs compute in float32."""
    weight_copy_bytes: int
    """Copies of weights in `precision`; GPUs that compute in float32 need none."""
    activation_bytes_per_sample: int
    """Estimate of the tensors that the forward pass keeps for the backward pass, in `precision`."""
    activation_bytes_per_sample_float32: int
    """Likewise where the GPU computes in float32."""
    global_batch: int
    """Samples of one step, over all GPUs."""
    micro_batches: int
    """Micro-batches of one step, on each GPU."""

    def to_json(self) -> str:
        """Return one line, without a line end."""
        return json.dumps(asdict(self))


def describe(config: Config, example: Batch) -> ResourceEstimate:
    """One step of the real model, its loss and the real optimizer with a single sample, as a graph alone.

    Raises:
        TrainerError: the flags and the data give no model.
    """
    with computing_in("float32" if config.precision == "float32" else LOW):
        description = _describe(config, example)
    with computing_in("float32"):
        exact = _describe(config, example)
    return replace(description, activation_bytes_per_sample_float32=exact.activation_bytes_per_sample)


def flops_per_sample(config: Config, example: Batch) -> int:
    """Floating point operations of matrix products and convolutions, forward and backward."""
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
    """Describe a step in the present policy of Keras."""
    with tf.Graph().as_default() as graph:
        net = model.build(config, example)
        # Placeholders, as what a constant decides would be computed while the graph is built.
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
        optimizer_bytes=total_bytes(v for v in optimizer.variables if len(v.shape)),  # steps and rates are none
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
    """Return the bytes that the backward pass needs besides the weights: of their copies, and of each sample.

    TensorFlow frees a tensor after its last use, so these are those of the forward pass that the backward pass uses.
    """
    ours, varying = set(forward), set(sample)
    for op in forward:  # each after those that it needs
        if any(tensor.op in varying for tensor in op.inputs):
            varying.add(op)
    used = [memory(tensor) for op in backward for tensor in op.inputs if tensor.op in ours]
    kept = {tensor.name: tensor for tensor in used}.values()
    copies = (tensor for tensor in kept if tensor.op not in varying and tensor.op.type not in STORED)
    return total_bytes(copies), total_bytes(tensor for tensor in kept if tensor.op in varying)


def memory(tensor: tf.Tensor) -> tf.Tensor:
    """The tensor whose memory this one is."""
    while tensor.op.type in VIEWS:
        tensor = tensor.op.inputs[0]
    return tensor


def flops(op: tf.Operation) -> int:
    """Count the operations of a matrix product or a convolution; other operations count for nothing, nor do loops."""
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
    """The name of each dimension in one term of an einsum; `...` stands for as many as are left."""
    head, _, tail = term.partition("...")
    return [*head, *map(str, range(rank - len(head) - len(tail))), *tail]


def total_bytes(tensors: Iterable[Any]) -> int:
    return sum(math.prod(one.shape) * tf.as_dtype(one.dtype).size for one in tensors)

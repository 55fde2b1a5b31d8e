"""Exports the trained model as a SavedModel."""

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, TypeAlias

import keras
import numpy as np
import tensorflow as tf

from trainer import model
from trainer.checkpoints import commit_marker, saver
from trainer.checkpoints.divergence import DRAWN, SAMPLES, Answers
from trainer.config import Job
from trainer.data import Array, Batch, show
from trainer.samples.shards import Dataset
from trainer.vertex import writable
from trainer.vertex.errors import TrainerError, exporting
from trainer.vertex.log import say_lines
from trainer.vertex.storage import copy_files

Answer: TypeAlias = Callable[[Array], Array]  # from inputs to outputs, as NumPy arrays


class Exported(NamedTuple):
    """An exported model that was loaded from its folder."""

    answer: Answer
    shape: tuple[int | None, ...]  # of the inputs; None is a dynamic size
    dtype: np.dtype[np.generic]


def finish(job: Job, trained: Answers) -> None:
    """Export the model from the last checkpoint. A checkpoint contains the complete model, whichever strategy saved it.

    The exported model computes in float32, so its outputs don't depend on the compute dtype that --precision selects.

    Raises:
        TrainerError: if the checkpoint is damaged or if the exported and trained models return different losses.
    """
    target, folder = job.storage.model, commit_marker.exportable(job.storage.checkpoints, job.config.steps)
    net, samples = new(job)
    saver.read_model(net, folder)
    with writable.writing(target):
        answer = export(net, samples.inputs, target)
    if trained.differ(np.asarray(model.losses(answer(samples.inputs), samples)).tolist()):
        raise TrainerError(f"{target} returns different losses than the trained model with the same weights; {DRAWN}")
    say_lines(show(answer, samples))


def rehearse(job: Job) -> None:
    """Export the initial model to a temporary folder. Raises TrainerError if the export fails."""
    policy, (net, samples) = keras.config.dtype_policy(), new(job)
    with tempfile.TemporaryDirectory() as aside:
        export(net, samples.inputs, Path(aside))
    keras.config.set_dtype_policy(policy)


def new(job: Job) -> tuple[keras.Model, Batch]:
    """Return the initial float32 model, and samples for comparing its outputs with those of the exported model."""
    keras.config.set_dtype_policy("float32")
    heldout = Dataset(job.shards, "heldout")
    samples = heldout.first(min(len(heldout), SAMPLES), job.config)
    keras.utils.set_random_seed(job.config.seed)
    return model.build(job.config, samples), samples


def export(net: keras.Model, inputs: Array, folder: Path) -> Answer:
    """Export the model to `folder`, reload the exported model, and compare the outputs of both models.

    Returns a function that runs the reloaded model.

    Args:
        net: the trained model, built outside a strategy's scope.
        inputs: samples with shape (n, ...). The exported model accepts any n, and any size for each dimension that the
            model doesn't fix.
        folder: the folder for the exported model.

    Raises:
        TrainerError: if the model can't be exported or if the reloaded model returns different outputs.
    """
    with tempfile.TemporaryDirectory() as aside:
        with exporting(model.__file__):
            net.export(aside, verbose=False)
        copy_files(Path(aside), folder)
    return prove(net, inputs, folder)


def load(folder: Path) -> Exported:
    """Load an exported model. The loaded model runs on the CPU, because a GPU might round differently in each call.

    Raises:
        TrainerError: if the folder doesn't contain an exported model.
    """
    try:
        with tf.device("CPU:0"):
            reloaded = tf.saved_model.load(str(folder))
        signature = reloaded.signatures["serving_default"]
    except (OSError, ValueError, KeyError, AttributeError, tf.errors.OpError) as error:
        reason = str(error).strip().partition("\n")[0]
        raise TrainerError(f"{folder} isn't an exported model: {reason}") from None
    (inputs,) = signature.structured_input_signature[1].values()

    def answer(array: Array) -> Array:
        with tf.device("CPU:0"):
            return reloaded.serve(array).numpy()

    return Exported(answer, tuple(inputs.shape), inputs.dtype.as_numpy_dtype)


def prove(net: keras.Model, inputs: Array, folder: Path) -> Answer:
    answer = load(folder).answer
    with tf.device("CPU:0"):
        expected = net(inputs)
    if not np.allclose(expected, given := answer(inputs), atol=1e-5):
        difference = float(np.abs(expected - given).max())
        raise TrainerError(f"{folder} and the trained model return outputs that differ by {difference:.3g}")
    return answer

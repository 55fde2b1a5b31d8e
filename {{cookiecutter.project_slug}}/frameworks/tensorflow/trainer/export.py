"""Export of the trained model, in the form that TensorFlow serves: a SavedModel."""

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, TypeAlias

import keras
import numpy as np
import tensorflow as tf

from trainer import model
from trainer.checkpoints import commit_marker, saver
from trainer.checkpoints.disagreement import DRAWN, SAMPLES, Answers
from trainer.config import Job
from trainer.data import Array, Batch, show
from trainer.samples.shards import Dataset
from trainer.vertex import writable
from trainer.vertex.errors import TrainerError, exporting
from trainer.vertex.log import say_lines
from trainer.vertex.storage import copy_files

Answer: TypeAlias = Callable[[Array], Array]  # inputs -> output, arrays of numpy


class Exported(NamedTuple):
    """A model that was read from its folder."""

    answer: Answer
    shape: tuple[int | None, ...]  # of its inputs; None is a free size
    dtype: np.dtype[np.generic]


def finish(job: Job, trained: Answers) -> None:
    """Export the model from the last checkpoint: there, whatever the strategy, it is whole.

    In float32: what is served must not depend on how it was trained.

    Raises:
        TrainerError: the checkpoint is damaged, or the export answers otherwise than the trained model.
    """
    target, folder = job.storage.model, commit_marker.exportable(job.storage.checkpoints, job.config.steps)
    net, samples = new(job)
    saver.read_model(net, folder)
    with writable.writing(target):
        answer = export(net, samples.inputs, target)
    if trained.differ(np.asarray(model.losses(answer(samples.inputs), samples)).tolist()):
        raise TrainerError(f"{target} answers otherwise than the trained model, with the same weights; {DRAWN}")
    say_lines(show(answer, samples))


def rehearse(job: Job) -> None:
    """Export the model of the first step to a folder that is then removed. Raises TrainerError where that fails."""
    policy, (net, samples) = keras.config.dtype_policy(), new(job)
    with tempfile.TemporaryDirectory() as aside:
        export(net, samples.inputs, Path(aside))
    keras.config.set_dtype_policy(policy)


def new(job: Job) -> tuple[keras.Model, Batch]:
    """Return the model of the first step, in float32, and the samples that it must answer alike when it is exported."""
    keras.config.set_dtype_policy("float32")
    heldout = Dataset(job.shards, "heldout")
    samples = heldout.first(min(len(heldout), SAMPLES), job.config)
    keras.utils.set_random_seed(job.config.seed)
    return model.build(job.config, samples), samples


def export(net: keras.Model, inputs: Array, folder: Path) -> Answer:
    """Write the model to `folder` and prove it there: reloaded, it must answer as the model does. Returns its answers.

    Args:
        net: built outside a strategy's scope, with the trained weights.
        inputs: of some samples, (n, ...); n stays free, and so does each size that the model leaves free.
        folder: where to; created if absent.

    Raises:
        TrainerError: the model cannot be exported, or the reloaded one answers otherwise.
    """
    with tempfile.TemporaryDirectory() as aside:
        with exporting(model.__file__):
            net.export(aside, verbose=False)
        copy_files(Path(aside), folder)
    return prove(net, inputs, folder)


def load(folder: Path) -> Exported:
    """Read an exported model; it answers on the CPU, as a GPU may round the same sums differently from call to call.

    Raises:
        TrainerError: there is none.
    """
    try:
        with tf.device("CPU:0"):
            reloaded = tf.saved_model.load(str(folder))
        signature = reloaded.signatures["serving_default"]
    except (OSError, ValueError, KeyError, AttributeError, tf.errors.OpError) as error:
        reason = str(error).strip().partition("\n")[0]
        raise TrainerError(f"{folder} is no exported model: {reason}") from None
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
        raise TrainerError(f"{folder} answers differently from the trained model, by {difference:.3g}")
    return answer

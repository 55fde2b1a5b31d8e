"""The trained model, in the form that TensorFlow serves: a SavedModel."""

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

import keras
import numpy as np
import tensorflow as tf

from trainer import data, model, telemetry, writable
from trainer.checkpoint import State
from trainer.config import Config
from trainer.data import Array
from trainer.errors import TrainerError
from trainer.shards import Dataset
from trainer.storage import Storage, copy_files
from trainer.telemetry import Values

SAMPLES = 32  # that must be answered alike
Answer: TypeAlias = Callable[[Array], Array]  # inputs -> output, arrays of numpy


def finish(config: Config, storage: Storage, state: State, heldout: Dataset, final: Values) -> None:
    """Export the model without the strategy and in float32: what is served must not depend on how it was trained."""
    keras.config.set_dtype_policy("float32")
    samples = heldout.batch(range(min(len(heldout), SAMPLES)), config)
    net = model.build(config, samples)
    net.set_weights(state.model.get_weights())
    with writable.writing(storage.model):
        answer = export(net, samples.inputs, storage.model)
    telemetry.say_lines(data.show(answer, samples))
    telemetry.say(f"{telemetry.describe(final)}; model in {storage.model}", **final)


def export(net: keras.Model, inputs: Array, folder: Path) -> Answer:
    """Write the model to `folder` and prove it there: reloaded, it must answer as the model does. Returns its answers.

    Args:
        net: built outside a strategy's scope, with the trained weights.
        inputs: of some samples, (n, ...); n stays free, and so does each size that the model leaves free.
        folder: where to; created if absent.

    Raises:
        TrainerError: the reloaded model answers otherwise.
    """
    with tempfile.TemporaryDirectory() as aside:
        net.export(aside, verbose=False)
        copy_files(Path(aside), folder)
    return prove(net, inputs, folder)


def prove(net: keras.Model, inputs: Array, folder: Path) -> Answer:
    with tf.device("CPU:0"):  # a GPU may round the same sums differently from one call to the next
        reloaded = tf.saved_model.load(str(folder))
        expected, answer = net(inputs), reloaded.serve(inputs)
    if not np.allclose(expected, answer, atol=1e-5):
        difference = float(np.abs(expected - answer).max())
        raise TrainerError(f"{folder} answers differently from the trained model, by {difference:.3g}")
    return lambda array: reloaded.serve(array).numpy()

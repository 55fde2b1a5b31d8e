"""The trained model, in the form that TensorFlow serves: a SavedModel."""

import tempfile
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

from trainer.data import Images
from trainer.errors import TrainerError
from trainer.storage import copy_files


def export(model: keras.Model, images: Images, folder: Path) -> None:
    """Write the model to `folder` and prove it there: reloaded, it must answer as the model does.

    Args:
        model: built outside a strategy's scope, with the trained weights.
        images: a batch of held-out samples (n, height, width, channels); n stays free.
        folder: where to; created if absent.

    Raises:
        TrainerError: the reloaded model answers otherwise.
    """
    with tempfile.TemporaryDirectory() as aside:
        model.export(aside, verbose=False)
        copy_files(Path(aside), folder)
    prove(model, images, folder)


def prove(model: keras.Model, images: Images, folder: Path) -> None:
    with tf.device("CPU:0"):  # a GPU may round the same sums differently from one call to the next
        reloaded = tf.saved_model.load(str(folder))
        expected, answer = model(images), reloaded.serve(images)
    if not np.allclose(expected, answer, atol=1e-5):
        difference = float(np.abs(expected - answer).max())
        raise TrainerError(f"{folder} answers differently from the trained model, by {difference:.3g}")

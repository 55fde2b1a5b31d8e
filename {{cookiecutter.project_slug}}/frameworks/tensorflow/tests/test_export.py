from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from trainer import export, model
from trainer.errors import TrainerError

RANDOM = np.random.default_rng(0)


def images(count: int) -> np.ndarray:
    return RANDOM.random((count, 8, 8, 1), np.float32)


def test_the_saved_model_answers_for_any_number_of_images(tmp_path: Path) -> None:
    net = model.build("tiny", (8, 8, 1), patch=2, classes=10)
    export.export(net, images(4), tmp_path / "model")
    reloaded, some = tf.saved_model.load(str(tmp_path / "model")), images(9)
    assert np.allclose(reloaded.serve(some), net(some), atol=1e-5)


def test_a_saved_model_that_answers_differently_is_no_success(tmp_path: Path) -> None:
    net, other = (model.build("tiny", (8, 8, 1), patch=2, classes=10) for _ in range(2))
    export.export(net, images(2), tmp_path)
    with pytest.raises(TrainerError, match="answers differently from the trained model"):
        export.prove(other, images(2), tmp_path)

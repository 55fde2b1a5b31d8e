from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.samples import batch
from trainer import export, model
from trainer.config import Config
from trainer.errors import TrainerError

SOME, MORE = (batch(count).inputs for count in (4, 9))


def tiny() -> keras.Model:
    return model.build(Config(), batch(1))


def test_the_saved_model_answers_for_any_number_of_samples(tmp_path: Path) -> None:
    net = tiny()
    export.export(net, SOME, tmp_path / "model")
    reloaded = tf.saved_model.load(str(tmp_path / "model"))
    assert np.allclose(reloaded.serve(MORE), net(MORE), atol=1e-5)


def test_a_saved_model_that_answers_differently_is_no_success(tmp_path: Path) -> None:
    export.export(tiny(), SOME, tmp_path)
    with pytest.raises(TrainerError, match="answers differently from the trained model"):
        export.prove(tiny(), SOME, tmp_path)

from pathlib import Path

import keras
import numpy as np
import pytest

from tests.samples import batch
from trainer import export, model
from trainer.config import Config
from trainer.vertex.errors import TrainerError

SOME, MORE = (batch(count).inputs for count in (4, 9))


def tiny() -> keras.Model:
    return model.build(Config(), batch(1))


def test_the_saved_model_answers_for_any_number_of_samples_and_tells_what_it_takes(tmp_path: Path) -> None:
    net = tiny()
    export.export(net, SOME, tmp_path / "model")
    exported = export.load(tmp_path / "model")
    assert np.allclose(exported.answer(MORE), net(MORE), atol=1e-5)
    assert (exported.shape[0], exported.dtype) == (None, MORE.dtype)


def test_a_saved_model_that_answers_differently_is_no_success(tmp_path: Path) -> None:
    export.export(tiny(), SOME, tmp_path)
    with pytest.raises(TrainerError, match="and the trained model return outputs that differ by"):
        export.prove(tiny(), SOME, tmp_path)


def test_where_nothing_is_exported_the_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(TrainerError, match=f"^{tmp_path}.* isn't an exported model: "):
        export.load(tmp_path)

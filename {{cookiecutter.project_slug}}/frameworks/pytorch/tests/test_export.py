from pathlib import Path

import numpy as np
import pytest
import torch

from tests.samples import batch
from trainer import export, model
from trainer.config import Config
from trainer.vertex.errors import TrainerError

SOME, MORE = (torch.from_numpy(batch(count).inputs) for count in (4, 9))


def tiny() -> torch.nn.Module:
    return model.build(Config(), batch(1)).eval()


def test_the_program_answers_for_any_number_of_samples_and_tells_what_it_takes(tmp_path: Path) -> None:
    net = tiny()
    export.export(net, SOME, tmp_path / "model")
    exported = export.load(tmp_path / "model")
    assert np.allclose(exported.answer(MORE.numpy()), net(MORE).detach(), atol=1e-5)
    assert (exported.shape[0], exported.dtype) == (None, MORE.numpy().dtype)


def test_the_weights_fit_a_fresh_model(tmp_path: Path) -> None:
    net, fresh = tiny(), tiny()
    export.export(net, SOME, tmp_path)
    fresh.load_state_dict(torch.load(tmp_path / export.WEIGHTS))
    assert torch.equal(net(MORE), fresh(MORE))


def test_a_model_for_which_the_temporary_folder_has_no_room_is_refused(tmp_path: Path) -> None:
    net = tiny()
    net.register_buffer("large", torch.zeros(1).expand(2**50))  # doesn't need memory
    with pytest.raises(OSError, match="No space left on device"):
        export.export(net, SOME, tmp_path)


def test_a_program_that_answers_differently_is_no_success(tmp_path: Path) -> None:
    export.export(tiny(), SOME, tmp_path)
    with pytest.raises(TrainerError, match="and the trained model return outputs that differ by"):
        export.prove(tiny(), SOME, tmp_path)


def test_where_nothing_is_exported_the_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(TrainerError, match=f"^{tmp_path}.* isn't an exported model: "):
        export.load(tmp_path)

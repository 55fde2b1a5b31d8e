from pathlib import Path

import numpy as np
import pytest
import torch

from tests.samples import batch
from trainer import export, model
from trainer.config import Config
from trainer.errors import TrainerError

SOME, MORE = (torch.from_numpy(batch(count).inputs) for count in (4, 9))


def tiny() -> torch.nn.Module:
    return model.build(Config(), batch(1)).eval()


def test_the_program_answers_for_any_number_of_samples(tmp_path: Path) -> None:
    net = tiny()
    export.export(net, SOME, tmp_path / "model")
    program = torch.export.load(tmp_path / "model" / export.PROGRAM).module()
    assert np.allclose(program(MORE).detach(), net(MORE).detach(), atol=1e-5)


def test_the_weights_fit_a_fresh_model(tmp_path: Path) -> None:
    net, fresh = tiny(), tiny()
    export.export(net, SOME, tmp_path)
    fresh.load_state_dict(torch.load(tmp_path / export.WEIGHTS))
    assert torch.equal(net(MORE), fresh(MORE))


def test_a_program_that_answers_differently_is_no_success(tmp_path: Path) -> None:
    export.export(tiny(), SOME, tmp_path)
    with pytest.raises(TrainerError, match="answers differently from the trained model"):
        export.prove(tiny(), SOME, tmp_path)

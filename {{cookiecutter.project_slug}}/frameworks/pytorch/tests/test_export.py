from pathlib import Path

import pytest
import torch

from trainer import export, model
from trainer.errors import TrainerError


def tiny() -> model.VisionTransformer:
    return model.build("tiny", (8, 8, 1), patch=2, classes=10)


def test_the_program_answers_for_any_number_of_images(tmp_path: Path) -> None:
    net = tiny()
    export.export(net, torch.rand(4, 8, 8, 1), tmp_path / "model")
    program = torch.export.load(tmp_path / "model" / export.PROGRAM).module()
    images = torch.rand(9, 8, 8, 1)
    assert torch.allclose(program(images), net(images), atol=1e-5)


def test_the_weights_fit_a_fresh_model(tmp_path: Path) -> None:
    net, fresh = tiny(), tiny()
    export.export(net, torch.rand(2, 8, 8, 1), tmp_path)
    fresh.load_state_dict(torch.load(tmp_path / export.WEIGHTS))
    images = torch.rand(3, 8, 8, 1)
    assert torch.equal(net(images), fresh(images))


def test_a_program_that_answers_differently_is_no_success(tmp_path: Path) -> None:
    net = tiny()
    export.export(net, torch.rand(2, 8, 8, 1), tmp_path)
    with pytest.raises(TrainerError, match="answers differently from the trained model"):
        export.prove(tiny(), torch.rand(2, 8, 8, 1), tmp_path)

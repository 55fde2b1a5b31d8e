"""The trained model, in the form that PyTorch serves: a `torch.export` program, and its weights."""

import copy
import tempfile
from pathlib import Path

import torch
from torch import Tensor, nn

from trainer.errors import TrainerError
from trainer.storage import copy_files

PROGRAM = "model.pt2"
WEIGHTS = "weights.pt"


def export(model: nn.Module, images: Tensor, folder: Path) -> None:
    """Write the model to `folder` and prove it there: reloaded, it must answer as the model does.

    Args:
        model: the bare model, without a parallel wrapper.
        images: a batch of at least two held-out samples (n, height, width, channels); n stays free.
        folder: where to; created if absent.

    Raises:
        TrainerError: the reloaded program answers otherwise.
    """
    model = copy.deepcopy(model).cpu().eval()
    images = images.cpu()
    program = torch.export.export(model, (images,), dynamic_shapes=({0: torch.export.Dim("n", min=1)},))
    with tempfile.TemporaryDirectory() as aside:
        torch.export.save(program, Path(aside) / PROGRAM)
        torch.save(model.state_dict(), Path(aside) / WEIGHTS)
        copy_files(Path(aside), folder)
    prove(model, images, folder)


def prove(model: nn.Module, images: Tensor, folder: Path) -> None:
    program = torch.export.load(folder / PROGRAM).module()
    with torch.no_grad():
        expected, answer = model(images), program(images)
    if not torch.allclose(expected, answer, atol=1e-5):
        difference = float((expected - answer).abs().max())
        raise TrainerError(f"{folder / PROGRAM} answers differently from the trained model, by {difference:.3g}")

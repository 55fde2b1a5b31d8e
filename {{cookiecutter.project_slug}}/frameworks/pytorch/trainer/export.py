"""The trained model, in the form that PyTorch serves: a `torch.export` program, and its weights."""

import copy
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

import torch
from torch import Tensor, nn

from trainer import checkpoint, commit_marker, data, model, telemetry, writable
from trainer.config import Config
from trainer.data import Array
from trainer.errors import TrainerError
from trainer.shards import Dataset
from trainer.storage import Storage, copy_files
from trainer.telemetry import Values

PROGRAM = "model.pt2"
WEIGHTS = "weights.pt"
SAMPLES = 32  # that must be answered alike
Answer: TypeAlias = Callable[[Array], Array]  # inputs -> output, arrays of numpy


def finish(config: Config, storage: Storage, heldout: Dataset, final: Values) -> None:
    """Export the model from the last checkpoint: there, whatever the strategy, it is whole.

    Raises:
        TrainerError: the checkpoint is damaged.
    """
    folder = commit_marker.numbered(storage.checkpoints, config.steps)
    if problem := commit_marker.damage(folder):
        raise TrainerError(f"{folder} is not exported: {problem}; run again, and it resumes from the one before")
    samples = heldout.batch(range(min(len(heldout), SAMPLES)), config)
    net = model.build(config, samples)
    checkpoint.read_model(net, folder)
    with writable.writing(storage.model):
        answer = export(net, torch.from_numpy(samples.inputs), storage.model)
    telemetry.say_lines(data.show(answer, samples))
    telemetry.say(f"{telemetry.describe(final)}; model in {storage.model}", **final)


def export(net: nn.Module, inputs: Tensor, folder: Path) -> Answer:
    """Write the model to `folder` and prove it there: reloaded, it must answer as the model does. Returns its answers.

    Args:
        net: the bare model, without a parallel wrapper.
        inputs: of at least two samples, (n, ...); n stays free, and each other size that the model leaves free.
        folder: where to; created if absent.

    Raises:
        TrainerError: the reloaded program answers otherwise.
    """
    net = copy.deepcopy(net).cpu().eval()
    inputs = inputs.cpu()
    sizes = {i: torch.export.Dim.AUTO for i, size in enumerate(inputs.shape) if size > 1}
    sizes[0] = torch.export.Dim("n", min=1)
    program = torch.export.export(net, (inputs,), dynamic_shapes=(sizes,))
    with tempfile.TemporaryDirectory() as aside:
        torch.export.save(program, Path(aside) / PROGRAM)
        torch.save(net.state_dict(), Path(aside) / WEIGHTS)
        copy_files(Path(aside), folder)
    return prove(net, inputs, folder)


def prove(net: nn.Module, inputs: Tensor, folder: Path) -> Answer:
    program = torch.export.load(folder / PROGRAM).module()
    with torch.no_grad():
        expected, answer = net(inputs), program(inputs)
    if not torch.allclose(expected, answer, atol=1e-5):
        difference = float((expected - answer).abs().max())
        raise TrainerError(f"{folder / PROGRAM} answers differently from the trained model, by {difference:.3g}")

    @torch.no_grad()
    def answers(array: Array) -> Array:
        return program(torch.from_numpy(array)).numpy()

    return answers

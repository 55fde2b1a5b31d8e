"""Exports the trained model as a `torch.export` program and a weights file."""

import copy
import errno
import itertools
import logging
import os
import shutil
import tempfile
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from trainer import model
from trainer.checkpoints import commit_marker, saver
from trainer.checkpoints.divergence import DRAWN, SAMPLES, Answers
from trainer.cluster import devices
from trainer.config import Job
from trainer.data import Array, Batch, show
from trainer.samples.shards import Dataset
from trainer.step.state import new_model
from trainer.vertex import writable
from trainer.vertex.errors import TrainerError, exporting
from trainer.vertex.log import say_lines
from trainer.vertex.storage import copy_files

PROGRAM = "model.pt2"
WEIGHTS = "weights.pt"
# A model might require a smaller size, a larger size, or a multiple of a number.
OTHER_SIZES: tuple[Callable[[int], int], ...] = (
    lambda size: size // 2,
    lambda size: size * 2,
    lambda size: size - 1,
    lambda size: size - max(size // 3, 1),
    lambda size: size - max(size // 4, 1),
)
Answer: TypeAlias = Callable[[Array], Array]  # from inputs to outputs, as NumPy arrays


class Exported(NamedTuple):
    """An exported model that was loaded from its folder."""

    answer: Answer
    shape: tuple[int | None, ...]  # of the inputs; None is a dynamic size
    dtype: np.dtype[np.generic]


def finish(job: Job, trained: Answers) -> None:
    """Export the model from the last checkpoint. A checkpoint contains the complete model, whichever strategy saved it.

    Raises:
        TrainerError: if the checkpoint is damaged or if the exported and trained models return different losses.
    """
    target, folder = job.storage.model, commit_marker.exportable(job.storage.checkpoints, job.config.steps)
    net, samples = new(job)
    saver.read_model(net, folder)
    with writable.writing(target):
        answer = export(net, torch.from_numpy(samples.inputs), target)
    output, batch = torch.from_numpy(answer(samples.inputs)), devices.copy(samples, torch.device("cpu"))
    if trained.differ(model.losses(output, batch).tolist()):
        raise TrainerError(f"{target} returns different losses than the trained model with the same weights; {DRAWN}")
    say_lines(show(answer, samples))


def rehearse(job: Job) -> None:
    """Export the initial model to a temporary folder. Raises TrainerError if the export fails."""
    net, samples = new(job)
    with tempfile.TemporaryDirectory() as aside:
        export(net, torch.from_numpy(samples.inputs), Path(aside))


def new(job: Job) -> tuple[nn.Module, Batch]:
    """Return the initial model, and samples for comparing its outputs with those of the exported model."""
    heldout = Dataset(job.shards, "heldout")
    count = max(min(len(heldout), SAMPLES), 2)  # from one sample, PyTorch would export a fixed batch size of 1
    samples = heldout.first(count, job.config)
    return new_model(job.config, samples), samples


def export(net: nn.Module, inputs: Tensor, folder: Path) -> Answer:
    """Export the model to `folder`, reload the exported model, and compare the outputs of both models.

    Returns a function that runs the reloaded model.

    Args:
        net: the model without a parallel wrapper.
        inputs: at least two samples, with shape (n, ...). The exported model accepts any n, and any size for each
            dimension that the model doesn't fix.
        folder: the folder for the exported model.

    Raises:
        TrainerError: if the model can't be exported or if the reloaded model returns different outputs.
    """
    net = copy.deepcopy(net).cpu().eval()
    inputs = inputs.cpu()
    sizes = {0: torch.export.Dim("n", min=1), **dict.fromkeys(varying(net, inputs[:2]), torch.export.Dim.AUTO)}
    with exporting(model.__file__):
        program = torch.export.export(net, (inputs,), dynamic_shapes=(sizes,))
    with tempfile.TemporaryDirectory() as aside:
        if shutil.disk_usage(aside).free < 2 * sum(tensor.nbytes for tensor in net.state_dict().values()):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), aside)  # otherwise SIGABRT would kill the process
        torch.export.save(program, Path(aside) / PROGRAM)
        torch.save(net.state_dict(), Path(aside) / WEIGHTS)
        copy_files(Path(aside), folder)
    return prove(net, inputs, folder)


def varying(net: nn.Module, inputs: Tensor) -> set[int]:
    """Return the input dimensions whose sizes the model doesn't fix, excluding the first dimension.

    A size isn't fixed if the model accepts another size, in that dimension alone or in several dimensions. Without this
    check, PyTorch would treat all sizes as symbolic until it finds the fixed ones, which takes twice as long.
    """
    dimensions, accepts = [i for i, size in enumerate(inputs.shape) if i and size > 1], shape_check(net, inputs)
    if not accepts(inputs.shape):  # the model can't run without values
        return {*dimensions}
    found = set[int]()
    for count in range(1, len(dimensions) + 1):
        for several in itertools.combinations(dimensions, count):
            shapes = ([other(n) if i in several else n for i, n in enumerate(inputs.shape)] for other in OTHER_SIZES)
            if not found.issuperset(several) and any(map(accepts, shapes)):
                found.update(several)
    return found


def shape_check(net: nn.Module, inputs: Tensor) -> Callable[[Sequence[int]], bool]:
    """Return a function that returns whether the model accepts inputs of a given shape.

    The function runs a copy of the model, because a model might remember the shape. The copy consists of fake tensors,
    which have shapes but no values, so the function computes nothing and needs no memory.
    """
    mode, logger = FakeTensorMode(allow_non_fake_inputs=True), logging.getLogger(FakeTensorMode.__module__)
    fakes: dict[int, Any] = {id(one): mode.from_tensor(one) for one in (*net.parameters(), *net.buffers())}

    @torch.no_grad()
    def accepts(shape: Sequence[int]) -> bool:
        other: nn.Module = copy.deepcopy(net, {**fakes})
        logger.setLevel(logging.CRITICAL)  # otherwise it logs each shape that the model doesn't accept
        try:
            with mode:
                other(inputs.new_empty(shape))
        except Exception:  # of any kind, because the model is the user's own
            return False
        finally:
            logger.setLevel(logging.NOTSET)
        return True

    return accepts


def load(folder: Path) -> Exported:
    """Load an exported model. The loaded model runs on the CPU.

    Raises:
        TrainerError: if the folder doesn't contain an exported model.
    """
    if not zipfile.is_zipfile(folder / PROGRAM):  # otherwise PyTorch would print a traceback
        raise TrainerError(f"{folder / PROGRAM} isn't an exported model: this file is damaged or missing")
    program = torch.export.load(folder / PROGRAM)
    module, (name,) = program.module(), program.graph_signature.user_inputs
    example = next(node.meta["val"] for node in program.graph.nodes if node.name == name)

    @torch.no_grad()
    def answer(array: Array) -> Array:
        return module(torch.from_numpy(array)).numpy()

    shape = tuple(size if isinstance(size, int) else None for size in example.shape)
    return Exported(answer, shape, torch.empty(0, dtype=example.dtype).numpy().dtype)


def prove(net: nn.Module, inputs: Tensor, folder: Path) -> Answer:
    answer = load(folder).answer
    with torch.no_grad():
        expected, given = net(inputs), torch.from_numpy(answer(inputs.numpy()))
    if not torch.allclose(expected, given, atol=1e-5):
        difference = float((expected - given).abs().max())
        raise TrainerError(f"{folder / PROGRAM} and the trained model return outputs that differ by {difference:.3g}")
    return answer

"""The state of a run, saved whole or not at all by all processes together, while they train on."""

import io
import os
import re
import warnings
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn, optim
from torch.distributed.checkpoint import state_dict_loader, state_dict_saver
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystem, FileSystemWriter
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict, set_state_dict
from torch.distributed.tensor import DTensor

from trainer import commit_marker, writable
from trainer.background import Background
from trainer.errors import TrainerError
from trainer.parallel import bare
from trainer.processes import World
from trainer.telemetry import say, warn

# Keyed by parameter names, not by positions in the optimizer, so that another strategy can load them.
BY_NAME = StateDictOptions(flatten_optimizer_state_dict=True)
OF_TODAY = (".weight_decay", ".fused")  # what flags and machine say, whatever the checkpoint has
NOT_WRITTEN = re.compile(r"\[enforce fail at inline_container")  # torch.save, of a disk that is full


@dataclass
class State:
    """What a checkpoint holds; `step` counts finished steps."""

    model: nn.Module  # parallelized
    optimizer: optim.Optimizer
    step: int = 0


class Saver(Background):
    """Checkpoints that another thread of each process writes: a step waits for a copy of the state, not for files.

    The copy lies in the machine's memory, pinned where it comes from a GPU. Every process must make a saver, and call
    its methods at the same steps. After an error of the loop, what is being written is still written to its end.

    Args:
        keep: checkpoints that stay; older ones are removed.
        timeout: seconds that a process waits for what the others have written.
    """

    def __init__(self, root: Path, keep: int, world: World, timeout: float) -> None:
        super().__init__()
        self._root, self._keep, self._world = root, keep, world.apart(timeout)
        on_gpu = world.device.type == "cuda"
        self._stager = DefaultStager(
            StagingOptions(
                use_pinned_memory=on_gpu, use_non_blocking_copy=on_gpu, use_shared_memory=False, use_async_staging=False
            )
        )

    def save(self, state: State) -> None:
        """Begin the checkpoint of this step, once the one before is written.

        Raises:
            TrainerError: the one before cannot be written.
        """
        self.wait()
        model, optimizer = get_state_dict(bare(state.model), state.optimizer, options=BY_NAME)
        copy = self._stager.stage({"model": share(model, self._world), "optimizer": share(optimizer, self._world)})
        assert isinstance(copy, dict), "the stager was not told to go on by itself"
        folder = commit_marker.numbered(self._root, state.step)
        self.start(partial(write, copy, folder, self._keep, self._world))


def share(part: dict[str, Any], world: World) -> dict[str, Any]:
    """What this process writes: what it alone holds and, of what all hold alike, its share of the bytes."""
    loads, ours = [0] * world.size, {}
    for name, value in part.items():
        least = loads.index(min(loads))
        if isinstance(value, DTensor) or world.copies(value) < world.size:
            least = world.rank
        else:
            loads[least] += value.nbytes if isinstance(value, Tensor) else 0
        if least == world.rank:
            ours[name] = value
    return ours


def write(copy: dict[str, Any], folder: Path, keep: int, world: World) -> None:
    """Write a checkpoint, then its commit marker, and keep the newest `keep` beside it. Every process must call it.

    Raises:
        TrainerError: it cannot be written.
    """
    with writable.writing(folder.parent):
        try:
            _write(copy, folder, keep, world)
        except CheckpointException as error:  # every process learns what happened in one of them
            cause = first_cause(error)
            is_full = isinstance(cause, RuntimeError) and NOT_WRITTEN.match(str(cause))
            raise OSError(one_line(cause)) if is_full else cause from None


def _write(copy: dict[str, Any], folder: Path, keep: int, world: World) -> None:
    if world.is_chief:
        commit_marker.begin(folder)
    world.wait()
    # What copies ahead from a GPU would take some of GPU 0's memory in this thread of each process, and all is here.
    writer, files = FileSystemWriter(folder, per_thread_copy_ahead=0), ChecksumFiles()
    writer.fs = files
    state_dict_saver.save(copy, storage_writer=writer, process_group=world.group)
    of_each = world.gather(files.checksums)
    if world.is_chief:
        commit_marker.commit(folder, {name: checksum for one in of_each for name, checksum in one.items()})
        commit_marker.prune(folder.parent, keep)
        say(f"saved {folder}")


class ChecksumFiles(FileSystem):
    """The files that a process writes, and their checksums: reading them back from a bucket may take long."""

    def __init__(self) -> None:
        self.checksums: dict[str, int] = {}  # by file name

    @contextmanager
    def create_stream(self, path: str | os.PathLike[str], mode: str) -> Iterator[io.IOBase]:
        with ChecksumStream(io.FileIO(path, mode)) as stream:
            yield stream
        self.checksums[Path(path).name] = stream.checksum

    def rename(self, path: str | os.PathLike[str], new_path: str | os.PathLike[str]) -> None:
        super().rename(path, new_path)
        self.checksums[Path(new_path).name] = self.checksums.pop(Path(path).name)


class ChecksumStream(io.BufferedWriter):
    checksum = 0

    def write(self, data: Any, /) -> int:
        self.checksum = zlib.crc32(data, self.checksum)
        return super().write(data)


def restore(state: State, root: Path, world: World) -> None:
    """Load the newest whole checkpoint, if there is one. Every process must call it.

    Raises:
        TrainerError: the checkpoint is of another model.
    """
    folder = newest(root, world)
    if folder is None:
        return
    net = bare(state.model)
    model, optimizer = get_state_dict(net, state.optimizer, options=BY_NAME)
    of_today = {name: value for name, value in optimizer.items() if name.endswith(OF_TODAY)}
    try:
        state_dict_loader.load({"model": model, "optimizer": optimizer}, checkpoint_id=folder)
    except CheckpointException as error:
        raise commit_marker.unfit(folder, one_line(first_cause(error))) from None
    optimizer |= of_today
    set_state_dict(net, state.optimizer, model_state_dict=model, optim_state_dict=optimizer, options=BY_NAME)
    state.step = commit_marker.number(folder)
    if world.is_chief:
        say(f"resumed at step {state.step} from {folder}")


def newest(root: Path, world: World) -> Path | None:
    """The newest checkpoint that is whole and undamaged; each process reads its share of the files to find out.

    The chief alone might read for longer than the others wait for it.
    """
    # The chief chooses for all: the others' view of a mounted bucket may be older.
    folders = commit_marker.whole(root, warn) if world.is_chief else iter(())
    while True:
        candidate = next(folders, None)
        step = int(world.sum(torch.tensor(commit_marker.number(candidate) if candidate else 0, device=world.device)))
        if step == 0:
            return None
        folder = commit_marker.numbered(root, step)
        problems = [one for one in world.gather(commit_marker.damage(folder, world.rank, world.size)) if one]
        if not problems:
            return folder
        if world.is_chief:
            commit_marker.invalidate(folder, problems[0])
            warn(f"skipped {folder}: {problems[0]}")


def read_model(net: nn.Module, folder: Path) -> None:
    """Put the weights of a whole checkpoint, of any strategy, into a plain model. One process alone may call it.

    Raises:
        TrainerError: the checkpoint is of another model.
    """
    weights = net.state_dict()
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "torch.distributed is disabled")  # as it should be
            state_dict_loader.load({"model": weights}, checkpoint_id=folder, no_dist=True)
    except CheckpointException as error:
        raise TrainerError(f"{folder} does not fit this model ({one_line(first_cause(error))})") from None
    net.load_state_dict(weights)


def first_cause(error: CheckpointException) -> BaseException:
    """The failure of one process."""
    cause, _ = next(iter(error.failures.values()))
    return cause


def one_line(cause: BaseException) -> str:
    return str(cause).partition("\n")[0]

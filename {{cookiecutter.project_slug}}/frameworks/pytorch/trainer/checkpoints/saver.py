"""Saves and restores checkpoints, which all processes write together while training continues."""

import io
import os
import re
import signal
import warnings
import zlib
from collections.abc import Callable, Container, Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.checkpoint import state_dict_loader, state_dict_saver
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.filesystem import FileSystem, FileSystemWriter
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.planner import LoadPlan
from torch.distributed.checkpoint.staging import AsyncStager, BlockingAsyncStager, DefaultStager, StagingOptions
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict, set_state_dict
from torch.distributed.tensor import DTensor

from trainer.checkpoints import commit_marker, divergence
from trainer.checkpoints.background import Background
from trainer.checkpoints.divergence import require_no_divergence
from trainer.cluster.preemption import NOTICE, LastMoment, StoppedError
from trainer.cluster.world import World
from trainer.config import Job, due
from trainer.parallel.clip import holder_count
from trainer.parallel.strategy import Strategy
from trainer.reports.speed import CHECKPOINTS, LAST_CHECKPOINT, Clock
from trainer.samples.fingerprint import Fingerprint, model_flags, require_unchanged
from trainer.step.state import State
from trainer.vertex import writable
from trainer.vertex.errors import PeerError, TrainerError
from trainer.vertex.log import say, warn

# The optimizer state is keyed by parameter names, not by positions, so that a different strategy can load it.
BY_NAME = StateDictOptions(flatten_optimizer_state_dict=True)
MOMENTS = "state."  # prefix of the moments; other keys describe parameter groups, which each run sets itself
NOT_WRITTEN = re.compile(r"\[enforce fail at inline_container")  # torch.save's error for a full disk


class Checkpoints(Background):
    """Checkpoints that all processes write in background threads.

    A training step waits only until the state is copied to host memory. If the state is on a GPU, this memory is
    pinned. Every process must call the methods of this class at the same steps. After an error in the training loop,
    the background thread still finishes the current checkpoint.
    """

    def __init__(self, job: Job, strategy: Strategy, world: World, samples: Fingerprint, clock: Clock) -> None:
        super().__init__()
        self._config, self._root, self._clock = job.config, job.storage.checkpoints, clock
        self._job, self._strategy, self._world, self._samples = job, strategy, world, samples
        self._saved = ""  # name of the latest checkpoint
        self._writers = world.with_own_group(job.config.collective_timeout)  # for the background thread
        self._last_moment = LastMoment(job.cluster, world.with_own_group(job.config.collective_timeout))
        self._stager = new_stager(world.device)

    def restore(self, state: State) -> State:
        """Load the latest complete checkpoint into the state. If there is no checkpoint, leave the state unchanged.

        Raises:
            TrainerError: if the checkpoint belongs to a different model or dataset, or if its step is greater than
                --steps.
            PeerError: if no checkpoint is usable and the state already contains values from a rejected one.
        """
        folder = newest(self._root, self._world, partial(load, state, self._strategy.bare(state.net)))
        require_unchanged(self._samples, folder, anyway=self._config.anyway, is_chief=self._world.is_chief)
        self._saved = folder.name if folder else ""
        if folder and self._world.is_chief:
            say(f"resumed at step {state.step} from {folder}", resumed=state.step)
        if state.step and not folder:
            raise PeerError("no usable checkpoint is left; after a restart, training begins at the first step")
        commit_marker.require_within(self._config.steps, state.step)
        return state

    def step(self, state: State) -> None:
        """Save the state if a checkpoint is due, or if a process was asked to stop.

        Raises:
            StoppedError: if a process was asked to stop. The current step is saved before StoppedError is raised.
            TrainerError: if an earlier checkpoint couldn't be written.
            PeerError: if the parameters of the processes have diverged.
        """
        by = self._last_moment.by(state.step)
        with self._clock.phase(CHECKPOINTS):
            if by or due(state.step, self._config, self._config.checkpoint_every):
                self.save(state)
            elif (every := self._config.compare_ranks_every) and state.step % every == 0:
                self.compare(state)
        if by:
            self.wait()
            self._writers.wait()  # until the chief has committed the checkpoint
            raise StoppedError(self._job.cluster, state.step, told=self._last_moment.told, by=by)
        self.check()

    def finish(self, state: State) -> None:
        """Save the state after the last step, unless it's saved already.

        A lost process may have interrupted the checkpoint of the last step.
        """
        if self._saved != commit_marker.numbered(self._root, state.step).name:
            self.save(state)

    def save(self, state: State) -> None:
        """Wait for the previous checkpoint, and then start writing one for the current step.

        Raises PeerError if parameters have diverged.
        """
        self.wait()
        self.compare(state)
        net = self._strategy.bare(state.net)
        divergence.share_buffers(net, self._world)
        model, optimizer = get_state_dict(net, state.optimizer, options=BY_NAME)
        world = self._writers
        copy = self._stager.stage({"model": share(model, world), "optimizer": share(optimizer, world)})
        assert isinstance(copy, dict), "the stager must not be asynchronous"
        folder, buffers = commit_marker.numbered(self._root, state.step), dict(net.named_buffers())
        self.start(partial(write, copy, folder, self._config.keep, world, self._samples, buffers.keys()))
        self._saved = folder.name

    def compare(self, state: State) -> None:
        """Compare the parameters of all processes.

        Raises PeerError if parameters have diverged. The error names these processes.
        """
        diverged = divergence.diverged(state, self._strategy.bare(state.net), self._world)
        names = [self._job.cluster.process(rank, self._world.size) for rank in diverged]
        if diverged:
            require_no_divergence(self._job, state.step, self._saved, names, [*diverged.values()])

    def __enter__(self) -> "Checkpoints":
        self._last_moment.__enter__()
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        with self._clock.phase(LAST_CHECKPOINT):
            super().__exit__(*error)
        # The run is over, so the process ignores notices. Otherwise, Python would restore the handler that kills it.
        signal.signal(NOTICE, signal.SIG_IGN)


def new_stager(device: torch.device) -> AsyncStager:
    """Return the stager, which copies the training state to host memory.

    On a GPU, the stager reuses pinned memory, because allocating it is slow.
    """
    if device.type == "cuda":
        return DefaultStager(StagingOptions(use_shared_memory=False, use_async_staging=False))
    return BlockingAsyncStager()  # the copy is freed after it is written


def share(part: dict[str, Any], world: World) -> dict[str, Any]:
    """Return the tensors that this process writes to a checkpoint.

    These tensors are the process's own shards and some of the tensors that all processes hold.
    """
    bytes_of_rank, written = [0] * world.size, {}
    for name, value in part.items():
        least = bytes_of_rank.index(min(bytes_of_rank))
        if isinstance(value, DTensor) or holder_count(value, world) < world.size:
            least = world.rank
        else:
            bytes_of_rank[least] += value.nbytes if isinstance(value, Tensor) else 0
        if least == world.rank:
            written[name] = value
    return written


def write(
    copy: dict[str, Any], folder: Path, keep: int, world: World, samples: Fingerprint, buffers: Container[str]
) -> None:
    """Write a checkpoint and its commit marker, and then remove all but the latest `keep` checkpoints.

    Every process must call this function.

    Raises:
        TrainerError: if the checkpoint can't be written, or if it contains NaN or infinite values.
    """
    commit_marker.require_finite(folder, world.gather(why_nonfinite(copy, buffers)))
    # The state is on the CPU. Copying ahead from a GPU would allocate memory of GPU 0 in every process's thread.
    writer, files = FileSystemWriter(folder, per_thread_copy_ahead=0), ChecksumFiles()
    writer.fs = files
    with writable.writing(folder.parent):
        if world.is_chief:
            commit_marker.create_empty(folder)
        world.wait()
        try:
            state_dict_saver.save(copy, storage_writer=writer, process_group=world.group)
        except CheckpointException as error:  # every process receives the errors of all processes
            raise first_cause(error) from None
        of_each = world.gather(files.checksums)
        if world.is_chief:
            samples.keep(folder)
            commit_marker.commit(folder, {name: checksum for rank in of_each for name, checksum in rank.items()})
            commit_marker.prune(folder.parent, keep)
            say(f"saved {folder}", saved=commit_marker.number(folder))


class ChecksumFiles(FileSystem):
    """The checkpoint files of one process, with their checksums.

    Checksums are computed while the files are written, because reading from a bucket is slow.
    """

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


def why_nonfinite(parts: Mapping[str, Mapping[str, Any]], buffers: Container[str]) -> str:
    """Return a phrase that names a tensor with NaN or infinite values.

    If all tensors are valid, return an empty string. Infinite values are valid in buffers such as attention masks, but
    NaN values aren't.
    """
    for part, tensors in parts.items():
        for name, value in tensors.items():
            local = value.to_local() if isinstance(value, DTensor) else value
            if not isinstance(local, Tensor) or not local.is_floating_point() or not local.numel():
                continue
            least, most = local.aminmax()  # NaN propagates to both; eight times faster than isfinite
            span = least.isnan() if part == "model" and name in buffers else ~(least.isfinite() & most.isfinite())
            if span:
                return f"{part}.{name} {commit_marker.NONFINITE}"
    return ""


def load(state: State, net: nn.Module, folder: Path) -> str:
    """Load a checkpoint into the state. It doesn't matter which strategy saved the checkpoint.

    `net` is the state's model without its wrapper.

    Every process must call this function. If this process can't use the checkpoint, return the reason. If the
    checkpoint is usable, return an empty string.

    Raises:
        TrainerError: if the checkpoint belongs to a different model.
    """
    model, optimizer = get_state_dict(net, state.optimizer, options=BY_NAME)
    moments = {name: value for name, value in optimizer.items() if name.startswith(MOMENTS)}
    try:
        parts = {"model": model, "optimizer": moments}
        state_dict_loader.load(parts, checkpoint_id=folder, planner=Whole("model.", f"optimizer.{MOMENTS}"))
    except CheckpointException as error:
        raise commit_marker.unfit(folder, one_line(first_cause(error)), model_flags(folder)) from None
    optimizer |= moments
    set_state_dict(net, state.optimizer, model_state_dict=model, optim_state_dict=optimizer, options=BY_NAME)
    state.step = commit_marker.number(folder)
    return why_nonfinite({"model": model, "optimizer": optimizer}, dict(net.named_buffers()))


class Whole(DefaultLoadPlanner):
    """A load planner that rejects a checkpoint if a tensor would be skipped or rounded.

    PyTorch's default planner silently skips and rounds tensors.

    Args:
        parts: the name prefixes of the tensors to load.
    """

    def __init__(self, *parts: str) -> None:
        super().__init__()
        self._parts = parts

    def create_local_plan(self) -> LoadPlan:
        for name, saved in self._saved.items():
            here = self.state_dict.get(name)
            if isinstance(here, Tensor) and here.dtype != saved.properties.dtype:
                raise ValueError(f"{name} is {saved.properties.dtype} in the checkpoint, but {here.dtype} in the model")
        return super().create_local_plan()

    def create_global_plan(self, global_plan: list[LoadPlan]) -> list[LoadPlan]:
        here = {item.dest_index.fqn for plan in global_plan for item in plan.items}
        if more := [name for name, saved in self._saved.items() if name not in here and saved.size.numel()]:
            raise ValueError(f"the checkpoint contains {more[0]}, but the model doesn't")
        return super().create_global_plan(global_plan)

    @cached_property
    def _saved(self) -> dict[str, TensorStorageMetadata]:
        tensors = self.metadata.state_dict_metadata.items() if self.metadata else ()
        return {
            name: value
            for name, value in tensors
            if isinstance(value, TensorStorageMetadata) and name.startswith(self._parts)
        }


def newest(root: Path, world: World, load: Callable[[Path], str]) -> Path | None:
    """Load the latest complete, undamaged checkpoint, and return its folder.

    Each process verifies only some of the files, because the other processes might time out if the chief verified them
    all.

    Args:
        load: a function that loads a checkpoint. If the checkpoint isn't usable, the function returns the reason.
            Otherwise, it returns an empty string.
    """
    why_corrupt = partial(commit_marker.why_corrupt, reader=world.rank, readers=world.size)
    # The chief chooses for all processes, because their views of a mounted bucket may be out of date.
    folders = commit_marker.complete_folders(root, warn) if world.is_chief else iter(())
    while True:
        candidate = next(folders, None)
        step = int(world.sum(torch.tensor(commit_marker.number(candidate) if candidate else 0, device=world.device)))
        if step == 0:
            return None
        folder = commit_marker.numbered(root, step)
        findings = [*filter(None, world.gather(why_corrupt(folder)))] or [*filter(None, world.gather(load(folder)))]
        if not findings:
            return folder
        if world.is_chief:
            commit_marker.invalidate(folder, findings[0])
            warn(f"skipped {folder}: {findings[0]}")


def read_model(net: nn.Module, folder: Path) -> None:
    """Load the weights of a complete checkpoint into an unwrapped model.

    It doesn't matter which strategy saved the checkpoint. A process can call this function independently of the others.

    Raises:
        TrainerError: if the checkpoint belongs to a different model.
    """
    weights = net.state_dict()
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "torch.distributed is disabled")  # only one process runs
            state_dict_loader.load({"model": weights}, checkpoint_id=folder, planner=Whole("model."), no_dist=True)
    except CheckpointException as error:
        raise TrainerError(f"{folder} doesn't match this model ({one_line(first_cause(error))})") from None
    net.load_state_dict(weights)


def first_cause(error: CheckpointException) -> BaseException:
    """Return the error from one of the failed processes.

    If the disk is full, return an OSError instead of torch.save's RuntimeError.
    """
    cause, _ = next(iter(error.failures.values()))
    return OSError(one_line(cause)) if NOT_WRITTEN.match(str(cause)) else cause


def one_line(cause: BaseException) -> str:
    return str(cause).partition("\n")[0]

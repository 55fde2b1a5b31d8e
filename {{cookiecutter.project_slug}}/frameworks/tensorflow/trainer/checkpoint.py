"""The state of a run, saved whole or not at all by the chief, while it trains on."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import keras
import tensorflow as tf

from trainer import commit_marker, writable
from trainer.background import Background
from trainer.errors import PeerError, TrainerError
from trainer.strategy import World
from trainer.telemetry import say, warn

PREFIX = "state"
# What TensorFlow makes of a full disk, and of a folder that belongs to somebody else.
FILE_ERRORS = (tf.errors.ResourceExhaustedError, tf.errors.PermissionDeniedError, tf.errors.FailedPreconditionError)


@dataclass
class State:
    """What a checkpoint holds; `step` counts finished steps."""

    model: keras.Model
    optimizer: keras.Optimizer
    step: int = 0

    def objects(self) -> tf.train.Checkpoint:
        return tf.train.Checkpoint(model=self.model, optimizer=self.optimizer)

    def variables(self) -> list[keras.Variable]:
        return [*self.model.variables, *self.optimizer.variables]


class Saver(Background):
    """Checkpoints that another thread writes: a step waits for a copy of the state, not for files.

    TensorFlow's own (`experimental_enable_async_checkpoint`) fails at the second checkpoint of variables of Keras 3
    (TensorFlow 2.21, Keras 3.15, November 2026).

    Args:
        keep: checkpoints that stay; older ones are removed.
        copy: a second state on the CPU, which the saver overwrites; None in all replicas but the chief, which alone
            writes.
        meet: returns when every machine has called it.
    """

    def __init__(self, root: Path, keep: int, copy: State | None, meet: Callable[[], None]) -> None:
        super().__init__()
        self._root, self._keep, self._copy, self._meet = root, keep, copy, meet

    def save(self, state: State) -> None:
        """Begin the checkpoint of this step, once the one before is written. Every machine must call it.

        Raises:
            TrainerError: the one before cannot be written.
        """
        self.wait()
        self._meet()  # in the next step the others would not wait for so long
        if self._copy is None:
            return
        for ours, theirs in zip(self._copy.variables(), state.variables(), strict=True):
            ours.assign(theirs)
        folder = commit_marker.numbered(self._root, state.step)
        self.start(partial(write, self._copy, folder, self._keep))


def write(state: State, folder: Path, keep: int) -> None:
    """Write a checkpoint, then its commit marker, and keep the newest `keep` beside it.

    Raises:
        TrainerError: it cannot be written.
    """
    with writable.writing(folder.parent, *FILE_ERRORS):
        commit_marker.begin(folder)
        state.objects().write(str(folder / PREFIX))
        commit_marker.commit(folder)
        commit_marker.prune(folder.parent, keep)
    say(f"saved {folder}")


def restore(state: State, root: Path, world: World) -> None:
    """Load the newest whole checkpoint, if there is one, on every machine.

    Raises:
        TrainerError: the checkpoint is of another model.
        PeerError: this machine does not see what the chief has chosen.
    """
    # The chief chooses for all: the others' view of a mounted bucket may be older.
    newest = commit_marker.latest(root, warn) if world.is_chief else None
    step = world.sum(commit_marker.number(newest) if newest else 0)
    if step == 0:
        return
    folder = commit_marker.numbered(root, step)
    if not folder.is_dir():
        raise PeerError(f"{folder}, which the chief has chosen, is not here; do all machines have one output folder?")
    try:
        with world.scope():
            state.objects().read(str(folder / PREFIX)).assert_consumed()
    except (AssertionError, ValueError, tf.errors.OpError) as error:
        raise commit_marker.unfit(folder, str(error).partition("\n")[0]) from None
    state.step = step
    if world.is_chief:
        say(f"resumed at step {state.step} from {folder}")


def read_model(net: keras.Model, folder: Path) -> None:
    """Put the weights of a whole checkpoint into a plain model. One process alone may call it.

    Raises:
        TrainerError: the checkpoint is of another model.
    """
    try:
        tf.train.Checkpoint(model=net).read(str(folder / PREFIX)).expect_partial().assert_existing_objects_matched()
    except (AssertionError, ValueError, tf.errors.OpError) as error:
        raise TrainerError(f"{folder} does not fit this model ({str(error).partition(chr(10))[0]})") from None

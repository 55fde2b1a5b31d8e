"""The state of a run, saved whole or not at all by the chief."""

from dataclasses import dataclass
from pathlib import Path

import keras
import tensorflow as tf

from trainer import commit_marker, writable
from trainer.errors import TrainerError
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


def save(state: State, root: Path, keep: int, is_chief: bool) -> None:
    """Write the checkpoint of this step and keep the newest `keep`; only the chief writes.

    Raises:
        TrainerError: it cannot be written.
    """
    if not is_chief:
        return
    folder = commit_marker.numbered(root, state.step)
    with writable.writing(root, *FILE_ERRORS):
        commit_marker.begin(folder)
        state.objects().write(str(folder / PREFIX))
        commit_marker.commit(folder)
        commit_marker.prune(root, keep)
    say(f"saved {folder}")


def restore(state: State, root: Path, world: World) -> None:
    """Load the newest whole checkpoint, if there is one, on every machine.

    Raises:
        TrainerError: the checkpoint is of another model.
    """
    # The chief chooses for all: the others' view of a mounted bucket may be older.
    newest = commit_marker.latest(root, warn) if world.is_chief else None
    step = world.sum(commit_marker.number(newest) if newest else 0)
    if step == 0:
        return
    folder = commit_marker.numbered(root, step)
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

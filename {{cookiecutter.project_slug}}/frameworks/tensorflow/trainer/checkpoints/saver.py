"""Saves and restores checkpoints, which the chief writes while training continues."""

from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

from trainer.checkpoints import commit_marker, divergence
from trainer.checkpoints.background import Background
from trainer.checkpoints.divergence import require_no_divergence
from trainer.cluster.preemption import LastMoment, StoppedError
from trainer.cluster.world import World
from trainer.config import Job, due
from trainer.reports.speed import CHECKPOINTS, LAST_CHECKPOINT, Clock
from trainer.samples.fingerprint import Fingerprint, model_flags, require_unchanged
from trainer.step.state import State
from trainer.vertex import writable
from trainer.vertex.errors import PeerError, TrainerError
from trainer.vertex.log import say, warn

PREFIX = "state"
# TensorFlow raises these errors for a full disk, and for a folder of a different user.
FILE_ERRORS = (tf.errors.ResourceExhaustedError, tf.errors.PermissionDeniedError, tf.errors.FailedPreconditionError)


class Checkpoints(Background):
    """Checkpoints that the chief writes in a background thread. A training step waits only until the state is copied.

    This class replaces TensorFlow's `experimental_enable_async_checkpoint`, which can't save a second checkpoint of
    Keras 3 variables (TensorFlow 2.21, Keras 3.15, November 2026).

    Args:
        copy: a second training state, on the CPU, which each checkpoint overwrites. On replicas other than the chief,
            `copy` is None.
    """

    def __init__(self, job: Job, world: World, copy: State | None, samples: Fingerprint, clock: Clock) -> None:
        super().__init__()
        self._config, self._root, self._clock = job.config, job.storage.checkpoints, clock
        self._job, self._world, self._copy, self._samples = job, world, copy, samples
        self._saved = ""  # name of the latest checkpoint
        self._last_moment = LastMoment(job.cluster, world, job.config.collective_timeout)

    def restore(self, state: State) -> State:
        """Load the latest complete checkpoint into the state. If there is no checkpoint, leave the state unchanged.

        Every machine must call this method.

        Raises:
            TrainerError: if the checkpoint belongs to a different model or dataset, or if its step is greater than
                --steps.
            PeerError: if this machine can't find the checkpoint that the chief chose.
        """
        # The chief chooses for all machines, because their views of a mounted bucket may be out of date.
        newest = commit_marker.latest(self._root, warn, partial(why_refused, self._copy)) if self._copy else None
        step = self._world.sum(commit_marker.number(newest) if newest else 0)
        folder = commit_marker.numbered(self._root, step) if step else None
        if folder:
            self._read(state, folder)
            state.step, self._saved = step, folder.name
        require_unchanged(self._samples, folder, anyway=self._config.anyway, is_chief=self._world.is_chief)
        if folder and self._world.is_chief:
            say(f"resumed at step {state.step} from {folder}", resumed=state.step)
        commit_marker.require_within(self._config.steps, state.step)
        return state

    def _read(self, state: State, folder: Path) -> None:
        if not folder.is_dir():
            raise PeerError(
                f"this machine can't find {folder}, which the chief selected; give all machines the same output folder"
            )
        try:
            with self._world.strategy.scope():
                objects(state).read(str(folder / PREFIX)).assert_consumed()
        except (AssertionError, ValueError, tf.errors.OpError) as error:
            raise commit_marker.unfit(folder, str(error).partition("\n")[0], model_flags(folder)) from None

    def step(self, state: State) -> None:
        """Save the state if a checkpoint is due, or if a machine was asked to stop.

        Every machine must call this method.

        Raises:
            StoppedError: if a machine was asked to stop. The current step is saved before StoppedError is raised.
            TrainerError: if an earlier checkpoint couldn't be written.
            PeerError: if the parameters of the replicas have diverged.
        """
        by = self._last_moment.by(state.step)
        with self._clock.phase(CHECKPOINTS):
            if by or due(state.step, self._config, self._config.checkpoint_every):
                self.save(state)
            elif (every := self._config.compare_ranks_every) and state.step % every == 0:
                self.compare(state)
        if by:
            self.wait()
            self._world.wait()  # until the chief has written the checkpoint
            raise StoppedError(self._job.cluster, state.step, told=self._last_moment.told, by=by)
        self.check()

    def save(self, state: State) -> None:
        """Wait for the previous checkpoint, and then start writing one for the current step.

        Raises PeerError if parameters have diverged.
        """
        self.wait()
        state.fetch()
        self.compare(state)  # waits for the chief, with a longer timeout than the next step
        folder = commit_marker.numbered(self._root, state.step)
        self._saved = folder.name
        if self._copy is None:
            return
        for ours, theirs in zip(variables(self._copy), variables(state), strict=True):
            ours.assign(theirs)
        self.start(partial(write, self._copy, folder, self._config.keep, self._samples))

    def compare(self, state: State) -> None:
        """Compare the parameters of all replicas.

        Raises PeerError if parameters have diverged. The error lists the diverged replicas.
        """
        diverged = divergence.diverged(state, self._world)
        names = [self._job.cluster.node(rank, self._world.mesh.data_size).name for rank in diverged]
        if diverged:
            require_no_divergence(self._job, state.step, self._saved, names, [*diverged.values()])

    def __enter__(self) -> "Checkpoints":
        self._last_moment.__enter__()
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        with self._clock.phase(LAST_CHECKPOINT):
            super().__exit__(*error)
        self._last_moment.__exit__()


def write(state: State, folder: Path, keep: int, samples: Fingerprint) -> None:
    """Write a checkpoint and its commit marker, and then remove all but the latest `keep` checkpoints.

    Raises:
        TrainerError: if the checkpoint can't be written, or if it contains NaN or infinite values.
    """
    commit_marker.require_finite(folder, [why_nonfinite(state)])
    with writable.writing(folder.parent, *FILE_ERRORS):
        commit_marker.create_empty(folder)
        objects(state).write(str(folder / PREFIX))
        samples.keep(folder)
        commit_marker.commit(folder)
        commit_marker.prune(folder.parent, keep)
    say(f"saved {folder}", saved=commit_marker.number(folder))


def why_refused(copy: State, folder: Path) -> str:
    """Read a checkpoint into `copy`. If the checkpoint isn't usable, return the reason.

    Otherwise, return an empty string.
    """
    with suppress(AssertionError, ValueError, tf.errors.OpError):  # `Checkpoints._read` reports a different model
        objects(copy).read(str(folder / PREFIX)).assert_consumed()
        return why_nonfinite(copy)
    return ""


def why_nonfinite(state: State) -> str:
    """Return a phrase that names a variable with NaN or infinite values.

    If all variables are valid, return an empty string. Infinite values are valid in buffers such as attention masks,
    but NaN values aren't.
    """
    buffers = {id(variable) for variable in state.net.non_trainable_variables}
    with tf.device("CPU:0"):  # the variables are on this device
        for variable in filter(lambda variable: "float" in variable.dtype, variables(state)):
            wrong = tf.math.is_nan(variable) if id(variable) in buffers else ~tf.math.is_finite(variable)
            if tf.reduce_any(wrong):
                return f"{variable.path} {commit_marker.NONFINITE}"
    return ""


def read_model(net: keras.Model, folder: Path) -> None:
    """Load the weights of a complete checkpoint into a model that was built without a distribution strategy.

    A process can call this function independently of the others.

    Raises:
        TrainerError: if the checkpoint belongs to a different model.
    """
    try:
        tf.train.Checkpoint(model=net).read(str(folder / PREFIX)).expect_partial().assert_existing_objects_matched()
    except (AssertionError, ValueError, tf.errors.OpError) as error:
        raise TrainerError(f"{folder} doesn't match this model ({str(error).partition(chr(10))[0]})") from None


def objects(state: State) -> tf.train.Checkpoint:
    return tf.train.Checkpoint(model=state.net, optimizer=state.optimizer)


def variables(state: State) -> list[keras.Variable]:
    return [*state.net.variables, *state.optimizer.variables]

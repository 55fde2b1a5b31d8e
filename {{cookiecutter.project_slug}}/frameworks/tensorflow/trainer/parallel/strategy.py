"""The interface of a strategy, which decides how the model is spread over the machines."""

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, NamedTuple, Protocol, cast

import keras
import tensorflow as tf

from trainer import model, optional
from trainer.cluster import devices
from trainer.cluster.spec import Cluster, Node
from trainer.cluster.world import Mesh, World
from trainer.config import Config, Job
from trainer.data import Batch
from trainer.parallel.calls import Steps
from trainer.samples import shards
from trainer.samples.batches import Masked
from trainer.step.optimizers import AdamW
from trainer.step.state import State
from trainer.step.totals import Totals
from trainer.vertex.storage import Storage


class Loop(NamedTuple):
    """The loop of train.py, for those who take its steps."""

    config: Config
    names: tuple[str, ...]  # of the totals
    step: Callable[..., tuple[Totals, Any]]  # train_step
    new_optimizer: Callable[..., keras.Optimizer]


class Spread(Protocol):
    """The state of a run, spread over the devices that take the steps."""

    loop: Loop
    communicating: Any  # seconds for which the first device only communicated in the newest step
    seconds: float  # of the newest step

    def take(self, steps: Steps) -> Totals:
        """Take these steps; returns the totals of those that are done."""
        ...

    def score(self, parts: Iterable[Sequence[Masked]]) -> Totals:
        """Measure batches, of each share of this machine one at a time."""
        ...


class Strategy:
    """A choice of --strategy: a module of this folder whose STRATEGY is one. A deleted module is no choice any more."""

    optimizer: type[keras.optimizers.AdamW] = AdamW
    """The kind of optimizer for its variables."""
    computes: bool = True
    """Whether the machines that run the loop compute the steps, too, and pool 2 holds reducers."""
    forward_backward: Callable[..., tuple[Totals, list[tf.Tensor]]] | None = None
    """Both passes of a step, in place of those of the loop."""

    def lay_out(self, job: Job) -> Mesh:
        """Return the mesh of a job's devices. Raises TrainerError if flags, pools, machines or model forbid it."""
        raise NotImplementedError

    def servers(self, cluster: Cluster) -> tuple[Node, ...]:
        """Return the replicas of pool 2 that take part; reducers run another program."""
        return ()

    def reads_data(self, cluster: Cluster) -> bool:
        """Whether this replica reads the data set."""
        return True

    def data(self, config: Config, storage: Storage, cluster: Cluster) -> AbstractContextManager[Path]:
        """Open the folder of the data set; no folder where this replica does not read it."""
        return shards.at(config.data, storage) if self.reads_data(cluster) else nullcontext(Path())

    def join(self, job: Job, mesh: Mesh) -> AbstractContextManager[World | None]:
        """Join the other replicas for the block; yields None where this one has served them until they had finished."""
        raise NotImplementedError

    def describe(self, job: Job, world: World) -> str:
        """`24 x NVIDIA A100-SXM4-40GB (driver 580.65.06, CUDA 12.5.1, ...), model_parallel: replicate 3 x layers 8`"""
        return f"{world.mesh.size} x {devices.describe()}, {job.config.strategy}: {world.mesh}"

    def scope(self, world: World) -> AbstractContextManager[Any]:
        """Return the scope in which variables are made."""
        return cast(AbstractContextManager[Any], world.strategy.scope())

    def build(self, config: Config, example: Batch, world: World) -> keras.Model:
        """Build the model, within the scope."""
        return model.build(config, example)

    def wrap(self, loop: Loop, state: State, world: World) -> Spread:
        """Spread the state over the devices that take the steps."""
        raise NotImplementedError

    def add_gradients(self, sums: Sequence[Any], tape: tf.GradientTape, loss: tf.Tensor, variables: Any) -> list[Any]:
        """Return the sums and the gradients of the loss of a micro-batch."""
        return [total + one for total, one in zip(sums, tape.gradient(loss, variables), strict=True)]

    def sync(self, totals: Totals, gradients: Sequence[tf.Tensor]) -> tuple[Totals, Sequence[tf.Tensor], Any]:
        """Add totals and gradients up over the devices; returns the seconds, too, in which this one only did so."""
        return totals, gradients, 0.0

    def clip(self, gradients: Sequence[tf.Tensor], limit: float) -> tuple[Sequence[tf.Tensor], tf.Tensor]:
        """Scale the gradients to a norm of at most `limit` over the whole model; returns them, and the norm before."""
        norm = tf.linalg.global_norm(gradients)
        return tf.clip_by_global_norm(gradients, limit, norm)[0], norm

    def communication(self, spread: Spread) -> dict[str, float]:
        """Seconds of the newest step in which the first device computed, and only communicated; empty if unknown."""
        return {}


def load(name: str) -> Strategy:
    """Return a strategy by its name. Raises TrainerError where the project has deleted it."""
    return cast(Strategy, optional.load(f"parallel.{name}", f"--strategy {name}").STRATEGY)

"""Defines the interface of strategies, which distribute the model across machines."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, NamedTuple, Protocol, cast

import keras
import tensorflow as tf

from trainer import model
from trainer.cluster import devices
from trainer.cluster.spec import Cluster, Node
from trainer.cluster.world import Mesh, World
from trainer.config import Config, Job
from trainer.data import Batch
from trainer.flags import module_in
from trainer.samples import shards
from trainer.samples.batches import Data, Masked, micro_batches
from trainer.step.state import AdamW, State
from trainer.step.totals import Totals, measure
from trainer.vertex.storage import Storage


@dataclass(frozen=True, kw_only=True)
class StrategyFlags(Config):
    """The flags that every strategy accepts."""

    strategy: Annotated[str, module_in("parallel")] = "multi_worker_mirrored"

    def findings(self) -> Iterator[str]:
        """Yield an error message, including the flag's name, for each invalid value of the strategy's own flags."""
        yield from ()


class Loop(NamedTuple):
    """The components of the training loop that a `Spread` needs to run steps."""

    config: Config
    names: tuple[str, ...]  # names of the totals
    step: Callable[..., tuple[Totals, Any]]  # train_step
    new_optimizer: Callable[..., keras.Optimizer]


class Spread(Protocol):
    """The training state, distributed over the devices that run the steps."""

    loop: Loop
    communicating: Any  # seconds of the latest step in which the first device only communicated
    seconds: float  # the duration of the latest step

    def take(self, parts: Sequence[Batch]) -> Totals:
        """Run the next step on this machine's slices of the global batch.

        Returns the sums of the loss and the metrics over all finished samples.
        """
        ...

    def score(self, parts: Iterable[Sequence[Masked]]) -> Totals:
        """Return the sums of the loss and the metrics over all batches in `parts`.

        Each item of `parts` contains one batch for each rank in `World.data_ranks`.
        """
        ...


class Strategy:
    """The base class of strategies. Each strategy is a module in this folder that contains an instance named STRATEGY.

    To remove a strategy, delete its module.

    If a `config` parameter has type Any, it also contains the strategy's own flags.
    """

    flags: type[StrategyFlags] = StrategyFlags
    """The `Flags` class of the strategy's module, which extends Config with the strategy's own flags.
    """
    optimizer: type[keras.optimizers.AdamW] = AdamW
    """The optimizer class for this strategy's variables."""
    computes: bool = True
    """True if the machines that run the training loop also compute the steps.

    In this case, pool 2 contains reducers.
    """

    @property
    def name(self) -> str:
        """The strategy's name, which is also the name of its module."""
        return type(self).__module__.rpartition(".")[2]

    def lay_out(self, config: Any, cluster: Cluster, shards: Path) -> Mesh:
        """Return a job's device mesh. Raises TrainerError if the flags, pools, machines, and model are incompatible.

        Args:
            shards: the dataset's folder.
        """
        raise NotImplementedError

    def servers(self, cluster: Cluster) -> tuple[Node, ...]:
        """Return the replicas in pool 2 that run the trainer. Reducers don't run the trainer."""
        return ()

    def reads_data(self, cluster: Cluster) -> bool:
        """Return whether this replica reads the dataset."""
        return True

    def data(self, config: Config, storage: Storage, cluster: Cluster) -> AbstractContextManager[Path]:
        """Open the dataset and yield its folder. If this replica doesn't read the dataset, yield an empty path."""
        return shards.at(config.data, storage) if self.reads_data(cluster) else nullcontext(Path())

    def join(self, config: Any, cluster: Cluster, mesh: Mesh) -> AbstractContextManager[World | None]:
        """Return a context manager that joins the other replicas.

        If this replica only serves the other replicas, the context manager yields None after they have finished.
        """
        raise NotImplementedError

    def describe(self, job: Job, world: World) -> str:
        """Return a description of the devices and the mesh.

        Example: `24 x NVIDIA A100-SXM4-40GB (driver 580.65.06, CUDA 12.5.1, ...), model_parallel: replicate 3 x layers
        8`
        """
        return f"{world.mesh.size} x {devices.describe()}, {self.name}: {world.mesh}"

    def scope(self, world: World) -> AbstractContextManager[Any]:
        """Return the scope in which variables are created."""
        return cast(AbstractContextManager[Any], world.strategy.scope())

    def build(self, config: Config, example: Batch, world: World) -> keras.Model:
        """Build the model within the strategy's scope."""
        return model.build(config, example)

    def wrap(self, loop: Loop, state: State, world: World) -> Spread:
        """Distribute the state across the devices that run the steps."""
        raise NotImplementedError

    def forward_backward(self, config: Config, net: Any, batch: Batch, world: World) -> tuple[Totals, list[tf.Tensor]]:
        """Return the sums of the loss and the metrics over one slice of the global batch, and the gradients.

        The sum of all slices' gradients is the gradient of the mean loss over the global batch.
        """
        variables = net.trainable_variables
        totals, sums = 0.0, [tf.zeros(variable.shape) for variable in variables]
        for part in micro_batches(batch, config.micro_batches):
            with tf.GradientTape() as tape:
                output = net(part.inputs, training=True)
                losses = model.losses(output, part)
                # Every sample must have the same weight, but slice sizes may differ by one. So don't average over a
                # slice.
                loss = tf.reduce_sum(losses) / config.global_batch
            sums = self.add_gradients(sums, tape, loss, variables)
            totals += measure(output, part, losses)
        return totals, sums

    def add_gradients(self, sums: Sequence[Any], tape: tf.GradientTape, loss: tf.Tensor, variables: Any) -> list[Any]:
        """Add the gradients of a micro-batch's loss to the gradient sums."""
        return [total + one for total, one in zip(sums, tape.gradient(loss, variables), strict=True)]

    def sync(self, totals: Totals, gradients: Sequence[tf.Tensor]) -> tuple[Totals, Sequence[tf.Tensor], Any]:
        """Sum the totals and the gradients across all devices.

        Also returns the communication time, in seconds, that didn't overlap with this device's computation.
        """
        return totals, gradients, 0.0

    def clip(self, gradients: Sequence[tf.Tensor], limit: float) -> tuple[Sequence[tf.Tensor], tf.Tensor]:
        """Scale the gradients so that their norm is at most `limit`.

        Returns the scaled gradients and the norm before scaling.
        """
        norm = tf.linalg.global_norm(gradients)
        return tf.clip_by_global_norm(gradients, limit, norm)[0], norm

    def communication(self, spread: Spread) -> dict[str, float]:
        """Return a device's computation time, and its communication time that doesn't overlap with computation.

        Both times are in seconds, for the latest step of the first device. If the times are unknown, return an empty
        dictionary.
        """
        return {}


def shares(data: Data, start: int, world: World) -> Iterator[tuple[Batch, ...]]:
    """Yield this machine's slices of the global batch for each step from `start` onward.

    A background thread reads the next step's slices during the current step.
    """
    each = (data.training(start, rank, world.mesh.data_size) for rank in world.data_ranks)
    steps = zip(*each, strict=True)
    with ThreadPoolExecutor(1) as reader:
        read = reader.submit(next, steps, None)
        while (now := read.result()) is not None:
            read = reader.submit(next, steps, None)
            yield now

"""The interface of a strategy, which decides how the model is spread over the machines."""

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
    """The flags that every strategy takes."""

    strategy: Annotated[str, module_in("parallel")] = "multi_worker_mirrored"

    def findings(self) -> Iterator[str]:
        """Yield a phrase, which names the flag, for each wrong value of a strategy's own flags."""
        yield from ()


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

    def take(self, parts: Sequence[Batch]) -> Totals:
        """Take the next step on this machine's shares; returns the totals of what is done."""
        ...

    def score(self, parts: Iterable[Sequence[Masked]]) -> Totals:
        """Measure batches, of each share of this machine one at a time."""
        ...


class Strategy:
    """A choice of --strategy: a module of this folder whose STRATEGY is one. A deleted module is no choice any more.

    Methods that take a `config` of any type take the strategy's own flags.
    """

    flags: type[StrategyFlags] = StrategyFlags
    """Config with this strategy's own flags: the class Flags of its module."""
    optimizer: type[keras.optimizers.AdamW] = AdamW
    """The kind of optimizer for its variables."""
    computes: bool = True
    """Whether the machines that run the loop compute the steps, too, and pool 2 holds reducers."""

    @property
    def name(self) -> str:
        """The choice, which is the name of the module."""
        return type(self).__module__.rpartition(".")[2]

    def lay_out(self, config: Any, cluster: Cluster, shards: Path) -> Mesh:
        """Return the mesh of a job's devices. Raises TrainerError if flags, pools, machines or model forbid it.

        Args:
            shards: the folder of the data set.
        """
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

    def join(self, config: Any, cluster: Cluster, mesh: Mesh) -> AbstractContextManager[World | None]:
        """Join the other replicas for the block; yields None where this one has served them until they had finished."""
        raise NotImplementedError

    def describe(self, job: Job, world: World) -> str:
        """`24 x NVIDIA A100-SXM4-40GB (driver 580.65.06, CUDA 12.5.1, ...), model_parallel: replicate 3 x layers 8`"""
        return f"{world.mesh.size} x {devices.describe()}, {self.name}: {world.mesh}"

    def scope(self, world: World) -> AbstractContextManager[Any]:
        """Return the scope in which variables are made."""
        return cast(AbstractContextManager[Any], world.strategy.scope())

    def build(self, config: Config, example: Batch, world: World) -> keras.Model:
        """Build the model, within the scope."""
        return model.build(config, example)

    def wrap(self, loop: Loop, state: State, world: World) -> Spread:
        """Spread the state over the devices that take the steps."""
        raise NotImplementedError

    def forward_backward(self, config: Config, net: Any, batch: Batch, world: World) -> tuple[Totals, list[tf.Tensor]]:
        """Return the sums over the samples, and the gradients of this share of the mean loss over the global batch."""
        variables = net.trainable_variables
        totals, sums = 0.0, [tf.zeros(variable.shape) for variable in variables]
        for part in micro_batches(batch, config.micro_batches):
            with tf.GradientTape() as tape:
                output = net(part.inputs, training=True)
                losses = model.losses(output, part)
                # Every sample counts the same, although shares may differ by one: no mean over this share.
                loss = tf.reduce_sum(losses) / config.global_batch
            sums = self.add_gradients(sums, tape, loss, variables)
            totals += measure(output, part, losses)
        return totals, sums

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


def shares(data: Data, start: int, world: World) -> Iterator[tuple[Batch, ...]]:
    """Yield this machine's shares of the global batch of each step from `start` on.

    Those of the next step are read while the present one computes.
    """
    each = (data.training(start, rank, world.mesh.data_size) for rank in world.data_ranks)
    steps = zip(*each, strict=True)
    with ThreadPoolExecutor(1) as reader:
        read = reader.submit(next, steps, None)
        while (now := read.result()) is not None:
            read = reader.submit(next, steps, None)
            yield now

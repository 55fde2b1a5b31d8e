"""The interface of a strategy, which decides how the model is spread over the processes."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any, cast

from torch import Tensor, nn

from trainer import optional
from trainer.cluster.world import Mesh, World
from trainer.config import Config
from trainer.parallel.clip import clip_gradients
from trainer.step.totals import Totals


class Strategy:
    """A choice of --strategy: a module of this folder whose STRATEGY is one. A deleted module is no choice any more."""

    dimensions: tuple[str, ...] = ("replicate",)
    """Dimensions of the mesh, outermost first. Where there are two, `--degree` processes lie along the last one."""
    needs: tuple[str, ...] = ()
    """Attributes that the model must have; model.py describes them."""
    flags: tuple[str, ...] = ()
    """Fields of Parallelism that this strategy takes, and not every one does."""
    casts: bool = True
    """Whether the forward pass is cast to --precision by autocast; shards are cast when they are gathered."""
    forward_backward: "Callable[[Config, Strategy, Any, Any, World], Totals] | None" = None
    """Both passes of a step, in place of those of the loop."""

    def require(self) -> None:
        """Raise TrainerError where the strategy cannot run on this machine."""

    def findings(self, config: Config, mesh: Mesh, net: Any) -> Iterator[str]:
        """Yield a phrase, which names the flag, for each conflict between flags, mesh and model."""
        yield from ()

    def join(self, world: World, timeout: float) -> AbstractContextManager[None]:
        """Join what a strategy has besides the process group; `timeout` is the seconds of a peer's silence."""
        return nullcontext()

    def wrap(self, config: Config, net: Any, world: World) -> nn.Module:
        """Spread the model over the processes; `net` itself then keeps only this process's parameters."""
        raise NotImplementedError

    def bare(self, net: Any) -> nn.Module:
        """Return this process's part of the model, without what `wrap` has put around it."""
        return cast(nn.Module, net)

    def parts(self, config: Config) -> int:
        """Parts into which the loop divides a batch; a pipeline divides it by itself."""
        return 1 if self.forward_backward else config.micro_batches

    def sync(self, net: Any, last: bool) -> AbstractContextManager[None]:
        """Average gradients over the processes after the backward pass of the last micro-batch, and not before."""
        return nullcontext()

    def clip(self, net: Any, limit: float, world: World) -> Tensor:
        """Scale the gradients to a norm of at most `limit` over the whole model; returns the norm that they had."""
        return clip_gradients(net, limit, world)

    def communication(self, net: Any) -> dict[str, float]:
        """Seconds of the newest timed step in which this process computed, and only communicated; empty if unknown."""
        return {}


def load(name: str) -> Strategy:
    """Return a strategy by its name. Raises TrainerError where the project has deleted it."""
    return cast(Strategy, optional.load(f"parallel.{name}", f"--strategy {name}").STRATEGY)

"""The choices of --strategy: a module each, and a module that is deleted is no choice any more."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, cast

from torch import nn

from trainer import optional
from trainer.config import Config
from trainer.meshes import Mesh
from trainer.processes import World


def nothing_to_join(world: World, timeout: float) -> AbstractContextManager[None]:
    return nullcontext()


@dataclass(frozen=True, kw_only=True)
class Strategy:
    """What the trainer asks of a strategy; its module has it as STRATEGY."""

    parallelize: Callable[[Config, Any, World], nn.Module]
    """The model over the processes of the world; what is given keeps only this process's parameters."""
    dimensions: tuple[str, ...] = ("replicate",)
    """Of the mesh, outermost first. Where there are two, `--degree` processes hold one copy along the last one."""
    needs: tuple[str, ...] = ()
    """Attributes that the model must have; model.py describes them."""
    flags: tuple[str, ...] = ()
    """Fields of Parallelism that not every strategy takes, and this one does."""
    require: Callable[[], None] = lambda: None
    """Raises TrainerError where the strategy cannot run on this machine."""
    problems: Callable[[Config, Mesh, Any], Iterator[str]] = lambda config, mesh, net: iter(())
    """What of flags, mesh and model does not fit, each in one phrase that names the flag."""
    join: Callable[[World, float], AbstractContextManager[None]] = nothing_to_join
    """What a process that has joined the process group joins besides, and the seconds of a peer's silence."""


def load(name: str) -> Strategy:
    return cast(Strategy, optional.load(f"strategies.{name}", f"--strategy {name}").STRATEGY)

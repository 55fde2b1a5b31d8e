"""The choices of --strategy: a module each, and a module that is deleted is no choice any more."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

from trainer import optional
from trainer.cluster import Cluster, Node
from trainer.config import Config
from trainer.goodput import Stopwatch
from trainer.storage import Storage


@dataclass(frozen=True, kw_only=True)
class Strategy:
    """What the trainer asks of a strategy; its module has it as STRATEGY."""

    servers: Callable[[Config, Cluster], tuple[Node, ...]]
    """Who of pool 2 takes part; raises TrainerError where the flags and the pools do not fit each other."""
    take_part: Callable[[Config, Cluster, Storage, Stopwatch], None]
    """What this replica does for the run, when all that take part are here."""


def load(name: str) -> Strategy:
    return cast(Strategy, optional.load(f"strategies.{name}", f"--strategy {name}").STRATEGY)

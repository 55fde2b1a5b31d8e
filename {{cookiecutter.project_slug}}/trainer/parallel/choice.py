"""Loads the strategy that --strategy selects, and parses its flags together with all other flags."""

import argparse
import importlib
import inspect
from collections.abc import Iterator, Sequence
from dataclasses import fields
from typing import cast

import tyro

from trainer import config as configs
from trainer import flags
from trainer.config import Config
from trainer.parallel.strategy import Strategy, StrategyFlags
from trainer.vertex.errors import TrainerError


def parse(argv: Sequence[str], program: str = "trainer.task") -> tuple[Strategy, StrategyFlags]:
    """Parse the flags and return the selected strategy and its Config.

    If a flag is unknown, print a usage message and exit. Raises TrainerError if a value is invalid.
    """
    strategy = load(named(argv))
    if foreign := list(foreign_flags(argv, strategy)):
        raise TrainerError("; ".join(foreign))
    own = ", ".join(map(flags.flag, own_flags(strategy))) or "none"
    purpose = f"{inspect.getdoc(Config)}\n\nAdditional flags of --strategy {strategy.name}: {own}."
    config = tyro.cli(strategy.flags, args=list(argv), prog=f"python -m {program}", description=purpose)
    if wrong := [*configs.findings(config), *config.findings()]:
        raise TrainerError("; ".join(wrong))
    return strategy, config


def load(name: str) -> Strategy:
    """Return the strategy with this name."""
    return cast(Strategy, importlib.import_module(f"trainer.parallel.{name}").STRATEGY)


def named(argv: Sequence[str]) -> str:
    """Return the value of --strategy. If the value is missing or unknown, return the default strategy."""
    words = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    words.add_argument("--strategy", nargs="?")
    name = words.parse_known_args(argv)[0].strategy
    return name if name in flags.strategies() else StrategyFlags.strategy


def own_flags(strategy: Strategy) -> list[str]:
    """Return the names of the strategy's fields that aren't common to all strategies."""
    common = {field.name for field in fields(StrategyFlags)}
    return [field.name for field in fields(strategy.flags) if field.name not in common]


def foreign_flags(argv: Sequence[str], strategy: Strategy) -> Iterator[str]:
    """Yield a message for each specified flag that only other strategies support."""
    known = {"help", *(field.name for field in fields(strategy.flags))}
    for word in (word.partition("=")[0] for word in argv if word.startswith("--")):
        name = word.removeprefix("--").replace("-", "_")
        names = {name, name.removeprefix("no_")}
        if names & known:
            continue
        if takers := [other for other in flags.strategies() if names & {*own_flags(load(other))}]:
            yield f"--strategy {strategy.name} doesn't support {word} (supported by {', '.join(takers)})"

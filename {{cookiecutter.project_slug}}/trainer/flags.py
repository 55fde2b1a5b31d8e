"""Checks for the files that declare flags, each of which yields a phrase for a wrong value, and a kind of flag."""

import math
from collections.abc import Iterator
from typing import Any, Literal

import tyro

from trainer import optional


def module_in(folder: str) -> Any:
    """Kind of flag whose choices are the strategies in a folder of trainer/; the modules' first lines are its help.

    Used as in `strategy: Annotated[str, module_in("parallel")]`, which `vertex-launch check` reads without an import.
    """
    purposes = optional.strategies(folder)
    help = "\n".join(f"{name}: {purpose}" for name, purpose in purposes.items())
    choices: Any = Literal[tuple(purposes)]
    # tyro gives the default of a flag with a constructor as ['first'].
    return tyro.conf.arg(
        constructor=choices, help=help, help_behavior_hint=lambda text: "(default: " + text.strip("[']") + ")"
    )


def at_least(least: float, flags: object, *names: str) -> Iterator[str]:
    """Yield a phrase for each of these fields that is below `least`, or not finite; None is no fault."""
    yield from _outside("0 or more" if least == 0 else f"at least {least}", least, flags, names)


def above_zero(flags: object, *names: str) -> Iterator[str]:
    """Yield a phrase for each of these fields that is 0, below it, or not finite; None is no fault."""
    yield from _outside("above 0", math.ulp(0.0), flags, names)


def flag(field: str) -> str:
    """`--global-batch` of global_batch"""
    return f"--{field.replace('_', '-')}"


def _outside(must: str, least: float, flags: object, names: tuple[str, ...]) -> Iterator[str]:
    for name in names:
        value = getattr(flags, name)
        if value is not None and not least <= value < math.inf:
            yield f"{flag(name)} is {value}, must be {must}"

"""Checks of flags, for the files that declare some: what is wrong with a value is one phrase that names the flag."""

import math
from collections.abc import Iterator


def at_least(least: float, flags: object, *names: str) -> Iterator[str]:
    """A phrase for each of these fields that is below `least`, or not finite; None is no fault."""
    must = "0 or more" if least == 0 else f"at least {least}"
    for name, value in _given(flags, names):
        if not least <= value < math.inf:
            yield f"{flag(name)} is {value}, must be {must}"


def above_zero(flags: object, *names: str) -> Iterator[str]:
    """A phrase for each of these fields that is 0, below it, or not finite; None is no fault."""
    for name, value in _given(flags, names):
        if not 0 < value < math.inf:
            yield f"{flag(name)} is {value}, must be above 0"


def flag(field: str) -> str:
    """`--global-batch` of global_batch"""
    return f"--{field.replace('_', '-')}"


def _given(flags: object, names: tuple[str, ...]) -> Iterator[tuple[str, float]]:
    for name in names:
        value = getattr(flags, name)
        if value is not None:
            yield name, value

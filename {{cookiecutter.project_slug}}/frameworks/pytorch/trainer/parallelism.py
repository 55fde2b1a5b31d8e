"""How the work is spread over the GPUs: the flags."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, kw_only=True)
class Parallelism:
    """The flags of Config that say how the work is spread."""

    strategy: Literal["ddp"] = "ddp"
    """How the model is spread over the GPUs."""


def problems(flags: Parallelism) -> Iterator[str]:
    """What is wrong with the values, each in one phrase that names the flag."""
    yield from ()

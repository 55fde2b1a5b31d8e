"""--profile FIRST:LAST: which steps are traced, and what their trace says in one sentence."""

import math
import re
from collections.abc import Iterable, Iterator

from trainer.telemetry import say

Span = tuple[float, float]  # start and end of an operation, in seconds

FORM = re.compile(r"(\d{1,9}):(\d{1,9})")


def steps(profile: str | None) -> range:
    """Indices of the steps, counted from 0: of 20:25 the five that end with steps 21 to 25; none without the flag."""
    found = FORM.fullmatch(profile or "")
    return range(int(found[1]), int(found[2])) if found else range(0)


def ahead(profile: str | None, start: int) -> range:
    """The same of a run that has taken so many steps; none, and a warning, if the first lies behind it."""
    traced = steps(profile)
    if traced and traced.start < start:
        say(f"--profile {profile}: the run resumes behind its first step, and is not traced", "WARNING")
        return range(0)
    return traced


def problems(profile: str | None, count: int) -> Iterator[str]:
    """What is wrong with the flag, in one phrase.

    Args:
        count: steps of the run.
    """
    traced = steps(profile)
    if profile is not None and not traced:
        yield f"--profile is {profile}, must be two numbers of steps such as 20:25"
    elif traced and traced.stop > count:
        yield f"--profile is {profile}, must end by the last step, {count}"


def split(computing: Iterable[Span], communicating: Iterable[Span], seconds: float, steps: int) -> str:
    """Where the time of the traced steps went, of which communication beside a computation costs nothing.

    `52.1 ms a step: computing 30.0, communicating 25.0, of which 8.0 alone; neither 14.1`
    """
    one, other = [*computing], [*communicating]
    either, computed, communicated = covered([*one, *other]), covered(one), covered(other)
    parts = (seconds, computed, communicated, either - computed, max(seconds - either, 0.0))
    step, computes, communicates, alone, neither = (f"{1000 * part / steps:.1f}" for part in parts)
    told = f"{step} ms a step: computing {computes}, communicating {communicates}, of which {alone} alone"
    return f"{told}; neither {neither}"


def covered(spans: Iterable[Span]) -> float:
    """The time in which at least one of them lasts."""
    total, end = 0.0, -math.inf
    for first, last in sorted(spans):
        total += max(last - max(first, end), 0.0)
        end = max(end, last)
    return total

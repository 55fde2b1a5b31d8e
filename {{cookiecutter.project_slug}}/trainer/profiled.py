"""--profile FIRST:LAST: which steps are traced."""

import re
from collections.abc import Iterator

from trainer.telemetry import say

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

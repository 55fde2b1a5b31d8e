"""--profile FIRST:LAST: which steps are traced."""

import re
from collections.abc import Iterator

FORM = re.compile(r"(\d{1,9}):(\d{1,9})")


def steps(profile: str | None) -> range:
    """Indices of the steps, counted from 0: of 20:25 the five that end with steps 21 to 25; none without the flag."""
    found = FORM.fullmatch(profile or "")
    return range(int(found[1]), int(found[2])) if found else range(0)


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

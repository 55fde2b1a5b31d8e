"""Assign the rows or items of a dataset to training, validation and test, always in the same way.

Source: InputDataConfig and its splits, google-cloud-aiplatform 2.7.0, types/training_pipeline.py.
"""

import math
import random
from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from datetime import datetime

from vertex_launch.errors import Finding
from vertex_launch.local.api.errors import invalid

SETS = ("training", "validation", "test")
DEFAULT = (0.8, 0.1, 0.1)

# StratifiedSplit: only the most frequent values are stratified, and only those with enough rows.
MOST_STRATA, FEWEST_ROWS = 500, 3

Assignment = list[str | None]  # the set of each row or item; None if it is left out
Fractions = Sequence[float]


def fractions(split: Mapping[str, float]) -> Fractions:
    """Return the share of each set, from `trainingFraction` and so on; the sets without one share the remainder.

    Raises ApiError INVALID_ARGUMENT if a fraction is negative or their sum exceeds 1.
    """
    stated = [split.get(f"{name}Fraction", 0.0) for name in SETS]
    remainder = 1 - sum(stated)
    if min(stated) < 0 or remainder < -1e-9:
        fault = f"the fractions {', '.join(map(str, stated))} do not add up to at most 1"
        raise invalid([Finding("inputDataConfig", fault, "correct them")])
    if not any(stated):
        return DEFAULT
    unset = [i for i, fraction in enumerate(stated) if not fraction] or [0]
    return [fraction + (remainder / len(unset) if i in unset else 0) for i, fraction in enumerate(stated)]


def by_fraction(count: int, shares: Fractions) -> Assignment:
    """Random sets of these shares, rounded to whole rows."""
    return _assigned(count, [_shuffled(range(count))], shares)


def by_time(times: Sequence[datetime | None], shares: Fractions) -> Assignment:
    """Assign the oldest rows to training, the newest to test ("About data splits for tabular data"), None to no set."""
    # The comment in training_pipeline.py reverses the order, which would train on the future.
    dated = sorted((time, i) for i, time in enumerate(times) if time)
    return _assigned(len(times), [[i for _, i in dated]], shares)


def by_value(values: Iterable[str]) -> Assignment:
    """The set that each value names; rows with other values are left out."""
    return [value if value in SETS else None for value in values]


def by_stratum(values: Sequence[Hashable], shares: Fractions) -> Assignment:
    """Random sets of these shares, in each of which a value is as frequent as in the whole; rare values are pooled."""
    strata: dict[Hashable, list[int]] = defaultdict(list)
    for i, value in enumerate(values):
        strata[value].append(i)
    by_size = sorted(strata.values(), key=len, reverse=True)
    common = [stratum for stratum in by_size[:MOST_STRATA] if len(stratum) >= FEWEST_ROWS]
    rare = [i for stratum in by_size[len(common) :] for i in stratum]
    return _assigned(len(values), [_shuffled(stratum) for stratum in (*common, rare)], shares)


def sizes(count: int, shares: Fractions) -> list[int]:
    """The size of each set: whole numbers that add up to `count`, by the largest remainder method."""
    exact = [count * share for share in shares]
    whole = [math.floor(size + 1e-9) for size in exact]
    by_remainder = sorted(range(len(exact)), key=lambda i: whole[i] - exact[i])
    for i in by_remainder[: count - sum(whole)]:
        whole[i] += 1
    return whole


def _assigned(count: int, groups: Iterable[Sequence[int]], shares: Fractions) -> Assignment:
    """Assign each group in its order: first to training, then to validation, then to test."""
    assignment: Assignment = [None] * count
    for group in groups:
        names = [name for name, size in zip(SETS, sizes(len(group), shares), strict=True) for _ in range(size)]
        for i, name in zip(group, names, strict=True):
            assignment[i] = name
    return assignment


def _shuffled(indices: Iterable[int]) -> list[int]:
    order = list(indices)
    random.Random(0).shuffle(order)
    return order

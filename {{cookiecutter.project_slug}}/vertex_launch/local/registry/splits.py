"""Which pieces of a dataset train, validate and test; the same pieces always end up in the same sets.

Source: InputDataConfig and its splits, google-cloud-aiplatform 2.7.0, types/training_pipeline.py.
"""

import math
import random
from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from datetime import datetime

SETS = ("training", "validation", "test")
DEFAULT = (0.8, 0.1, 0.1)

# StratifiedSplit: only so many values, and only those with so many rows, are spread evenly.
COMMONEST, FEWEST_ROWS = 500, 3

Assignment = list[str | None]  # the set of each piece; None for one that is left out
Fractions = Sequence[float]


def fractions(split: Mapping[str, float]) -> Fractions:
    """The share of each set, from `trainingFraction` and so on; what is not given away goes to those not named.

    Raises:
        ValueError: they are more than all, or less than nothing.
    """
    given = [split.get(f"{name}Fraction", 0.0) for name in SETS]
    rest = 1 - sum(given)
    if min(given) < 0 or rest < -1e-9:
        raise ValueError(f"the fractions {', '.join(map(str, given))} do not add up to at most 1; correct them")
    if not any(given):
        return DEFAULT
    open_sets = [i for i, fraction in enumerate(given) if not fraction] or [0]
    return [fraction + (rest / len(open_sets) if i in open_sets else 0) for i, fraction in enumerate(given)]


def by_fraction(count: int, shares: Fractions) -> Assignment:
    """Sets of these shares, at random, each as near to its share as whole pieces can be."""
    return _assigned(count, [(_shuffled(range(count)))], shares)


def by_time(moments: Sequence[datetime | None], shares: Fractions) -> Assignment:
    """The oldest train and the newest test, as "About data splits for tabular data" has it; None is left out."""
    # The comment in training_pipeline.py has it the other way round, which would train on the future.
    known = [(moment, i) for i, moment in enumerate(moments) if moment]
    return _assigned(len(moments), [[i for _, i in sorted(known)]], shares)


def by_value(values: Iterable[str]) -> Assignment:
    """The set that each value names; other values are left out."""
    return [value if value in SETS else None for value in values]


def by_stratum(values: Sequence[Hashable], shares: Fractions) -> Assignment:
    """Sets of these shares, in each of which the values are as frequent as in all; rare values fall at random."""
    strata: dict[Hashable, list[int]] = defaultdict(list)
    for i, value in enumerate(values):
        strata[value].append(i)
    by_size = sorted(strata.values(), key=len, reverse=True)
    common = [stratum for stratum in by_size[:COMMONEST] if len(stratum) >= FEWEST_ROWS]
    rare = [i for stratum in by_size[len(common) :] for i in stratum]
    return _assigned(len(values), [_shuffled(stratum) for stratum in (*common, rare)], shares)


def sizes(count: int, shares: Fractions) -> list[int]:
    """How many of `count` pieces each set gets: whole numbers that add up, largest remainders rounded up."""
    exact = [count * share for share in shares]
    whole = [math.floor(size + 1e-9) for size in exact]
    by_remainder = sorted(range(len(exact)), key=lambda i: whole[i] - exact[i])
    for i in by_remainder[: count - sum(whole)]:
        whole[i] += 1
    return whole


def _assigned(count: int, groups: Iterable[Sequence[int]], shares: Fractions) -> Assignment:
    """Deal out each group in its order: first what trains, then what validates, then what tests."""
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

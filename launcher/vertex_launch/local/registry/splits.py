"""Deterministically assigns the rows or items of a dataset to the training, validation, and test sets.

Source: InputDataConfig and its splits, google-cloud-aiplatform 2.7.0, types/training_pipeline.py.
"""

import math
import random
from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from vertex_launch.errors import Finding
from vertex_launch.job.job_resource import Resource
from vertex_launch.local.api import filters
from vertex_launch.local.api.errors import invalid
from vertex_launch.local.registry.dataset_files import LABELS, ML_USE, SETS, DatasetContent

DEFAULT = (0.8, 0.1, 0.1)
OF_TABLES = ("predefinedSplit", "timestampSplit", "stratifiedSplit")

# StratifiedSplit: only the most frequent values with enough rows are stratified.
MOST_STRATA, FEWEST_ROWS = 500, 3

Assignment = list[str | None]  # the set of each row or item, or None if the row isn't used
Fractions = Sequence[float]


def assignment(content: DatasetContent, config: Mapping[str, Any]) -> Assignment:
    """Return the set that a split assigns to each row or item. Raises ApiError if the split isn't possible."""
    name = next((name for name in (*OF_TABLES, "filterSplit", "fractionSplit") if name in config), "")
    if name in OF_TABLES and not content.header:
        raise invalid(
            [Finding("inputDataConfig", f"{name} requires a tabular dataset", "use fractionSplit or filterSplit")]
        )
    if name == "filterSplit" and content.header:
        raise invalid([Finding("inputDataConfig", f"{name} requires an image or text dataset", "use fractionSplit")])
    split = config.get(name, {})
    shares = _fractions(split)
    column = content.column(split.get("key", "")) if name in OF_TABLES else []
    match name:
        case "predefinedSplit":
            return _by_value(column)
        case "timestampSplit":
            return _by_time(column, shares)
        case "stratifiedSplit":
            return _by_stratum(column, shares)
        case "filterSplit":
            return _by_filter(content.rows, split)
        case "" if not content.header:
            return _by_use(content.rows)
    return _by_fraction(len(content.rows), shares)


def _fractions(split: Mapping[str, float]) -> Fractions:
    """Return the sets' fractions, such as `trainingFraction`. Sets without a fraction share the remainder equally.

    Raises ApiError INVALID_ARGUMENT if a fraction is negative or the sum of the fractions exceeds 1.
    """
    stated = [split.get(f"{name}Fraction", 0.0) for name in SETS]
    remainder = 1 - sum(stated)
    if min(stated) < 0 or remainder < -1e-9:
        fault = f"the fractions {', '.join(map(str, stated))} aren't valid"
        raise invalid([Finding("inputDataConfig", fault, "use nonnegative fractions whose sum is at most 1")])
    if not any(stated):
        return DEFAULT
    unset = [i for i, fraction in enumerate(stated) if not fraction] or [0]
    return [fraction + (remainder / len(unset) if i in unset else 0) for i, fraction in enumerate(stated)]


def _by_fraction(count: int, shares: Fractions) -> Assignment:
    """Assign rows to sets randomly, in proportion to `shares`. Set sizes are rounded to whole rows."""
    return _assigned(count, [_shuffled(range(count))], shares)


def _by_time(texts: Sequence[str], shares: Fractions) -> Assignment:
    """Assign the oldest rows to the training set and the newest to the test set. Ignore rows without a valid time.

    Source: Vertex AI documentation, "About data splits for tabular data".
    """
    # The comment in training_pipeline.py has the reverse order, but that order would train on the newest rows.
    dated = sorted((time, i) for i, text in enumerate(texts) if (time := _time(text)))
    return _assigned(len(texts), [[i for _, i in dated]], shares)


def _time(text: str) -> datetime | None:
    """Parse a time in RFC 3339 format with the offset Z, which a timestamp split requires. Return None otherwise."""
    try:
        return datetime.fromisoformat(text) if text.endswith("Z") and "T" in text else None
    except ValueError:
        return None


def _by_value(values: Iterable[str]) -> Assignment:
    """Return the values, and replace each one that isn't a set name with None."""
    return [value if value in SETS else None for value in values]


def _by_use(items: Sequence[Resource]) -> Assignment:
    """Return the set that each item's ML use specifies.

    Split items without an ML use according to the default fractions.
    """
    uses = _by_value(item.get(LABELS, {}).get(ML_USE, "") for item in items)
    unassigned = iter(_by_fraction(uses.count(None), DEFAULT))
    return [use or next(unassigned) for use in uses]


def _by_filter(items: Sequence[Resource], split: Mapping[str, str]) -> Assignment:
    """Return the first set whose filter matches each item. The filter "-" doesn't match any item."""
    filters_of = {name: split.get(f"{name}Filter", "-") for name in SETS}
    tests = {name: filters.predicate(text, {"labels"}) for name, text in filters_of.items() if text != "-"}
    labels = [{"labels": item.get(LABELS, {})} for item in items]
    return [next((name for name, matches in tests.items() if matches(resource)), None) for resource in labels]


def _by_stratum(values: Sequence[Hashable], shares: Fractions) -> Assignment:
    """Assign rows to sets by stratified sampling, which preserves value frequencies. Rare values share one stratum."""
    strata: dict[Hashable, list[int]] = defaultdict(list)
    for i, value in enumerate(values):
        strata[value].append(i)
    by_size = sorted(strata.values(), key=len, reverse=True)
    common = [stratum for stratum in by_size[:MOST_STRATA] if len(stratum) >= FEWEST_ROWS]
    rare = [i for stratum in by_size[len(common) :] for i in stratum]
    return _assigned(len(values), [_shuffled(stratum) for stratum in (*common, rare)], shares)


def _sizes(count: int, shares: Fractions) -> list[int]:
    """Return the size of each set. The largest remainder method ensures that the sizes add up to `count`."""
    exact = [count * share for share in shares]
    whole = [math.floor(size + 1e-9) for size in exact]
    by_remainder = sorted(range(len(exact)), key=lambda i: whole[i] - exact[i])
    for i in by_remainder[: count - sum(whole)]:
        whole[i] += 1
    return whole


def _assigned(count: int, groups: Iterable[Sequence[int]], shares: Fractions) -> Assignment:
    """Assign the members of each group to sets in order: first to training, then to validation, then to test."""
    assignment: Assignment = [None] * count
    for group in groups:
        names = [name for name, size in zip(SETS, _sizes(len(group), shares), strict=True) for _ in range(size)]
        for i, name in zip(group, names, strict=True):
            assignment[i] = name
    return assignment


def _shuffled(indices: Iterable[int]) -> list[int]:
    order = list(indices)
    random.Random(0).shuffle(order)
    return order

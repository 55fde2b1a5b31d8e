"""Values that look like real input and are then changed, so that they get past the first check."""

import json
from collections.abc import Sequence
from typing import Any

from hypothesis import event
from hypothesis import strategies as st

from vertex_launch.errors import FaultError

Json = Any
WORDS = ("", "\0", "\ud800", "x" * 5000, "../..", "/", "NaN", "1e999", "-0", "*", '"', "{{ x }}", "\u2028", "٣")
NUMBERS = (2**31, 2**63, 2**70, -1, 10**400, 1e300, 5e-324, float("inf"), float("nan"))
JUNK: st.SearchStrategy[Json] = st.one_of(
    st.sampled_from(WORDS) | st.sampled_from(NUMBERS) | st.sampled_from(([[]], {"": {}}, [None])),
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    st.lists(st.integers(), max_size=3) | st.dictionaries(st.text(max_size=5), st.text(max_size=5), max_size=3),
)


@st.composite
def changed(draw: st.DrawFn, values: st.SearchStrategy[Json], most: int = 3) -> Json:
    """JSON in which up to so many values or keys were replaced, doubled or removed."""
    value = draw(values)
    for _ in range(max(draw(st.integers(-1, most)), 0)):
        value = _change(draw, value)
    return value


def _change(draw: st.DrawFn, value: Json) -> Json:
    if not value or not isinstance(value, dict | list) or draw(st.integers(0, 5)) == 0:
        return draw(JUNK)
    what = draw(st.sampled_from(("inside", "inside", "inside", "removed", "added")))
    if isinstance(value, list):
        index = draw(st.integers(0, len(value) - 1))
        new = {"removed": [], "added": [value[index]] * 2}
        return [*value[:index], *(new[what] if what in new else [_change(draw, value[index])]), *value[index + 1 :]]
    key = draw(st.sampled_from(sorted(value)))
    if what == "removed":
        return {other: inner for other, inner in value.items() if other != key}
    new_key = draw(st.sampled_from(WORDS) | st.text(max_size=8)) if what == "added" else key
    return {**value, new_key: _change(draw, value[key])}


@st.composite
def torn(draw: st.DrawFn, texts: st.SearchStrategy[bytes]) -> bytes:
    """Bytes of which, in one case of four, a part was cut out or replaced."""
    text = draw(texts)
    if draw(st.integers(0, 3)):
        return text
    begin = draw(st.integers(0, len(text)))
    end = draw(st.integers(begin, min(begin + 8, len(text))))
    return text[:begin] + draw(st.binary(max_size=4)) + text[end:]


def as_json(values: st.SearchStrategy[Json]) -> st.SearchStrategy[bytes]:
    return torn(values.map(lambda value: json.dumps(value).encode()))


def some(**fields: Sequence[Json]) -> st.SearchStrategy[dict[str, Json]]:
    """An object with some of these fields; each has one of its values, the first of which are right."""
    return st.fixed_dictionaries({}, optional={name: st.sampled_from(values) for name, values in fields.items()})


def sentences(error: FaultError) -> None:
    """Each finding of a refusal is one."""
    event("refused")
    assert error.findings
    assert all(finding.sentence for finding in error.findings)

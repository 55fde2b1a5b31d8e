import json
from typing import Any

import pytest

from vertex_launch.untrusted.jsons import DEEPEST, loads


def lists(depth: int) -> str:
    return "[" * depth + "]" * depth


BROKEN: list[str | bytes] = ["", "{", "[" * 10**6, '{"a":' * 10**6, lists(DEEPEST + 1), b"\xff", "9" * 5000]


@pytest.mark.parametrize("text", BROKEN, ids=range(len(BROKEN)))
def test_whatever_cannot_be_used_is_one_kind_of_error(text: str | bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - which one is not ours to say
        loads(text)


WIDE: list[Any] = [{"a": [1, None]}, [[]] * 1000, {"brackets": "[{" * 1000}, json.loads(lists(DEEPEST))]


@pytest.mark.parametrize("value", WIDE, ids=range(len(WIDE)))
def test_what_is_wide_or_only_looks_deep_is_read(value: Any) -> None:
    assert loads(json.dumps(value)) == loads(json.dumps(value).encode()) == value

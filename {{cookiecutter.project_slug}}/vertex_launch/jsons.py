"""Reads JSON that others wrote: requests, files that anybody can edit, lines that a replica prints."""

import json
from typing import Any

DEEPEST = 200  # lists and objects within each other; protobuf takes 100 in a free form, and jobs need ten


def loads(text: str | bytes, **hooks: Any) -> Any:
    """The value of a JSON text in UTF-8; `hooks` are those of `json.loads`.

    Raises:
        ValueError: it is not JSON, or nested so deeply that whoever walks through it would exhaust the stack.
    """
    decoded = text.decode() if isinstance(text, bytes) else text
    try:
        value = json.loads(decoded, **hooks)
    except RecursionError:
        raise ValueError(f"nested deeper than {DEEPEST} levels") from None
    # Counting is quick, and hardly any text needs the walk.
    if decoded.count("[") + decoded.count("{") > DEEPEST and _depth(value) > DEEPEST:
        raise ValueError(f"nested deeper than {DEEPEST} levels")
    return value


def _depth(value: Any) -> int:
    """Level by level, as recursion is what this guards against."""
    depth, level = 0, [value]
    while level := [one for one in level if isinstance(one, dict | list)]:
        depth += 1
        level = [inner for one in level for inner in (one.values() if isinstance(one, dict) else one)]
    return depth

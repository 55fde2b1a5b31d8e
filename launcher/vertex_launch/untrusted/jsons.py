"""Reads JSON that others wrote: requests, files that anybody can edit, lines that a replica prints."""

import json
from collections.abc import Callable
from typing import Any

from vertex_launch.errors import FaultError, Finding

DEEPEST = 100  # nested lists and objects; protobuf takes 100 in a free form, and jobs need ten


def loads(text: str | bytes, **hooks: Any) -> Any:
    """Parse JSON in UTF-8, with the hooks of `json.loads`; raises ValueError if it is none or nested too deeply."""
    return shallow(lambda: json.loads(text.decode() if isinstance(text, bytes) else text, **hooks))


def shallow(read: Callable[[], Any]) -> Any:
    """Return what `read` returns; raises FaultError if recursive code could exhaust the stack over it."""
    try:
        level = [value := read()]
        for _ in range(DEEPEST + 1):  # level by level, because recursion could exhaust the stack here, too
            level = [node for node in level if isinstance(node, dict | list)]
            if not level:
                return value
            level = [inner for node in level for inner in (node.values() if isinstance(node, dict) else node)]
    except RecursionError:
        pass
    fault = f"is nested too deeply, in more than {DEEPEST} levels"
    raise FaultError(Finding("", fault, "no job needs more than ten"))

"""Parser for untrusted JSON, such as requests, files that any user can edit, and lines that a replica prints."""

import json
from collections.abc import Callable
from typing import Any

from vertex_launch.errors import FaultError, Finding

DEEPEST = 100  # levels of lists and objects; protobuf accepts 100 levels in a free-form value, and jobs need ten


def loads(text: str | bytes, **hooks: Any) -> Any:
    """Parse UTF-8 JSON with the same hooks as `json.loads`.

    Raises ValueError if the JSON isn't valid. Raises FaultError if the JSON is nested too deeply.
    """
    return shallow(lambda: json.loads(text.decode() if isinstance(text, bytes) else text, **hooks))


def shallow(read: Callable[[], Any]) -> Any:
    """Return the value that `read` returns. Raises FaultError if recursion over the value could exhaust the stack."""
    try:
        level = [value := read()]
        for _ in range(DEEPEST + 1):  # level by level, because recursion could exhaust the stack
            level = [node for node in level if isinstance(node, dict | list)]
            if not level:
                return value
            level = [inner for node in level for inner in (node.values() if isinstance(node, dict) else node)]
    except RecursionError:
        pass
    fault = f"is nested too deeply, with more than {DEEPEST} levels"
    raise FaultError(Finding("", fault, "use fewer levels, because a job never needs more than ten"))

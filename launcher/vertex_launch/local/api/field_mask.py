"""The `fields` parameter, which selects fields of a response. Example: name,customJobs(name,state).

Source: Google Cloud documentation, "System parameters", and Cloud Storage documentation, "Partial responses", 2026.
"""

import re
from collections.abc import Mapping
from typing import Any

from vertex_launch.errors import Finding
from vertex_launch.job.job_resource import camel
from vertex_launch.local.api.errors import ApiError, invalid

PARAMETERS = ("fields", "$fields")
TOKEN = re.compile(r"[(),/.]|[^(),/.\s]+")
NAME = re.compile(r"[\w@$-]+|\*")

Mask = dict[str, Any]  # field -> mask of its subfields; * matches every field, and an empty mask selects everything


def parse(query: Mapping[str, str]) -> Mask:
    """Parse the field mask in a call's parameters. Raises ApiError INVALID_ARGUMENT if the mask isn't valid."""
    text = next((query[name] for name in PARAMETERS if query.get(name)), "")
    mask: Mask = {}
    opened, field = [mask], mask  # the masks of the open parentheses, and the mask of the current field
    named = not text  # whether the last token completed a field
    for token in TOKEN.findall(text):
        name = NAME.fullmatch(token)
        if named == bool(name) or (token == ")" and len(opened) == 1):
            raise _unreadable(text)
        named = bool(name) or token == ")"
        if name:
            field = field.setdefault(camel(token), {})
        elif token == "(":
            opened.append(field)
        elif token in "),":
            field = opened.pop() if token == ")" else opened[-1]
    if not named or len(opened) > 1:
        raise _unreadable(text)
    return mask


def selected(answer: Any, mask: Mask) -> Any:
    """Return the response fields that a mask selects. Ignore fields that the response doesn't contain."""
    if isinstance(answer, list) and mask:
        return [selected(item, mask) for item in answer]
    if not isinstance(answer, Mapping) or not mask:
        return answer
    wanted = {key: mask.get(key, mask.get("*")) for key in answer}
    return {key: selected(answer[key], inner) for key, inner in wanted.items() if inner is not None}


def _unreadable(text: str) -> ApiError:
    return invalid([Finding("fields", f'"{text}" isn\'t a field mask', "use one such as name,customJobs(name,state)")])

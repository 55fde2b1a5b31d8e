"""The parameter `fields` of both APIs: the parts of an answer that a client wants, as in name,customJobs(name,state).

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

Mask = dict[str, Any]  # a mask for each field, * standing for every one; an empty mask wants all


def parse(query: Mapping[str, str]) -> Mask:
    """Return the mask of a call's parameters; raises ApiError INVALID_ARGUMENT if it cannot be read."""
    text = next((query[name] for name in PARAMETERS if query.get(name)), "")
    mask: Mask = {}
    opened, field = [mask], mask  # the masks in whose parentheses this field stands, and that of the field
    named = not text  # whether a field has just been named
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
    """Return the parts of an answer that a mask names; a field that the answer lacks is none."""
    if isinstance(answer, list) and mask:
        return [selected(item, mask) for item in answer]
    if not isinstance(answer, Mapping) or not mask:
        return answer
    wanted = {key: mask.get(key, mask.get("*")) for key in answer}
    return {key: selected(answer[key], inner) for key, inner in wanted.items() if inner is not None}


def _unreadable(text: str) -> ApiError:
    return invalid([Finding("fields", f'"{text}" cannot be read', "write it as in name,customJobs(name,state)")])

"""Translation between project IDs and project numbers.

Requests contain a project's ID or number. Responses contain the project number. The server's files contain the project
ID.
"""

import json
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from starlette.datastructures import QueryParams

from vertex_launch.job.contract import DIGITS, project_number
from vertex_launch.local.api.errors import ApiError
from vertex_launch.local.api.http import Call, Handler, Route
from vertex_launch.local.api.store import Store
from vertex_launch.untrusted import jsons

NUMBERED = re.compile(rf"(?<![\w/])projects/([0-9]{{{DIGITS}}})(?![0-9A-Za-z-])")  # not inside a URL
NAME = re.compile(r"^projects/([^/]+)(?=/locations/[^/]+/(?!keyRings/))")  # the name of a Vertex AI resource
CLIENTS_OWN = frozenset({"args", "command", "env", "metadata"})  # fields whose values aren't translated


class Projects:
    """The projects that have local resources, and the project in the settings."""

    def __init__(self, store: Store, own: str) -> None:
        self._store = store
        self._own = own

    def by_id(self, text: str) -> str:
        """Replace project numbers with project IDs in all resource names in a text.

        Keep the numbers of unknown projects.
        """
        if not NUMBERED.search(text):
            return text
        ids = {project_number(id): id for id in (*self._store.projects(), self._own)}
        return NUMBERED.sub(lambda name: f"projects/{ids.get(name[1], name[1])}", text)

    def translated(self, handler: Handler) -> Handler:
        """Wrap a handler so that it receives project IDs and the client receives project numbers."""

        def handle(call: Call, **parts: str) -> Any:
            query = QueryParams([(key, self.by_id(value)) for key, value in call.query.multi_items()])
            call = replace(call, query=query, body=self._body(call.text()).encode())
            answer = handler(call, **{name: self.by_id(part) for name, part in parts.items()})
            return _renamed(answer, by_number)

        return handle

    def _body(self, text: str) -> str:
        """Replace project numbers with project IDs in a request body.

        Don't change an invalid body, because the handler rejects it.
        """
        if not NUMBERED.search(text):
            return text
        try:
            return json.dumps(_renamed(jsons.loads(text, object_pairs_hook=_unique), self.by_id))
        except ValueError:
            return text

    def routes(self) -> list[Route]:
        """Return the Resource Manager routes that clients use to convert between project IDs and project numbers."""
        return [("GET", "/v1/projects/{project}", self._v1), ("GET", "/v3/projects/{project}", self._v3)]

    def _v1(self, call: Call, project: str) -> Any:
        id = self._id(project)
        return {"projectId": id, "projectNumber": project_number(id), "lifecycleState": "ACTIVE", "name": id}

    def _v3(self, call: Call, project: str) -> Any:
        id = self._id(project)
        return {"name": f"projects/{project_number(id)}", "projectId": id, "state": "ACTIVE", "displayName": id}

    def _id(self, project: str) -> str:
        id = self.by_id(f"projects/{project}").partition("/")[2]
        if id.isdigit():
            raise ApiError("NOT_FOUND", f"project number {id} isn't known locally; use the project ID")
        return id


def by_number(text: str) -> str:
    """Replace the project ID in a Vertex AI resource name with the project number.

    If the text isn't a resource name, return it unchanged.
    """
    return NAME.sub(lambda name: f"projects/{project_number(name[1])}", text)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(mapping := dict(pairs)) < len(pairs):
        raise ValueError("a key is repeated")
    return mapping


def _renamed(value: Any, name: Callable[[str], str]) -> Any:
    """Apply `name` to all strings in a JSON value except those in the fields that CLIENTS_OWN lists."""
    match value:
        case str():
            return name(value)
        case list():
            return [_renamed(item, name) for item in value]
        case dict():
            return {name(key): item if key in CLIENTS_OWN else _renamed(item, name) for key, item in value.items()}
    return value

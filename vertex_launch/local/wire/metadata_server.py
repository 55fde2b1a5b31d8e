"""The metadata server of Compute Engine, by which Google's clients find project, place and account of a replica.

Source: Compute Engine documentation, "About VM metadata" and "Predefined metadata keys", 2026.
"""

import json
from typing import Any

from vertex_launch.contract import project_number
from vertex_launch.settings import Settings

ROOT = "/computeMetadata"
TOKEN = {"access_token": "local-vertex", "expires_in": 3599, "token_type": "Bearer"}
SCOPES = ("https://www.googleapis.com/auth/cloud-platform", "https://www.googleapis.com/auth/userinfo.email")


def tree(settings: Settings, account: str) -> dict[str, Any]:
    """Return all values, for replicas that call Google in the name of an account, "" for the project's own."""
    number = project_number(settings.project)
    email = account or f"{number}-compute@developer.gserviceaccount.com"
    own = {"aliases": ["default"], "email": email, "scopes": [*SCOPES], "token": json.dumps(TOKEN)}
    values = {
        "project": {"project-id": settings.project, "numeric-project-id": number},
        "universe": {"universe-domain": "googleapis.com"},
        "instance": {
            "attributes": {},
            "zone": f"projects/{number}/zones/{settings.region}-a",
            "service-accounts": {"default": own, email: own},
        },
    }
    return {ROOT[1:]: {"v1": values}}


def answer(value: Any, path: str) -> str | None:
    """Return the value at a path of a tree, of a folder its keys or, with ?recursive=true, its JSON; None for none."""
    path, _, query = path.partition("?")
    for part in filter(None, path.split("/")):
        value = value.get(part) if isinstance(value, dict) else None
    if isinstance(value, dict):
        listed = "".join(f"{key}{'/' * isinstance(below, dict)}\n" for key, below in value.items())
        return json.dumps(value) if "recursive=true" in query.lower() else listed
    return "".join(f"{line}\n" for line in value) if isinstance(value, list) else value

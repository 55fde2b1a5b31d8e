"""The metadata server of Compute Engine, by which Google's clients find project, place and account of a replica.

Source: Compute Engine documentation, "About VM metadata" and "Predefined metadata keys", 2026.
"""

import json
from dataclasses import dataclass
from typing import Any

ROOT = "/computeMetadata/v1"
TOKEN = {"access_token": "local-vertex", "expires_in": 3599, "token_type": "Bearer"}
SCOPES = ("https://www.googleapis.com/auth/cloud-platform", "https://www.googleapis.com/auth/userinfo.email")


@dataclass(frozen=True)
class Identity:
    """The account and the place in whose name a job's replicas call Google."""

    project: str
    number: str  # of the project
    region: str
    account: str  # "" for the project's default service account

    @property
    def email(self) -> str:
        return self.account or f"{self.number}-compute@developer.gserviceaccount.com"


def answer(identity: Identity, path: str) -> str | None:
    """Return the value at a path, of a folder its keys or, with ?recursive=true, its JSON; None if nothing is there."""
    path, _, query = path.partition("?")
    value: Any = _tree(identity)
    for part in filter(None, path.removeprefix(ROOT).split("/")):
        value = value.get(part) if isinstance(value, dict) else None
    if isinstance(value, dict):
        listed = "".join(f"{key}{'/' * isinstance(below, dict)}\n" for key, below in value.items())
        return json.dumps(value) if "recursive=true" in query.lower() else listed
    return value if isinstance(value, str) or value is None else _written(value)


def _tree(identity: Identity) -> dict[str, Any]:
    account = {"aliases": ["default"], "email": identity.email, "scopes": [*SCOPES], "token": json.dumps(TOKEN)}
    return {
        "project": {"project-id": identity.project, "numeric-project-id": identity.number},
        "universe": {"universe-domain": "googleapis.com"},
        "instance": {
            "attributes": {},
            "zone": f"projects/{identity.number}/zones/{identity.region}-a",
            "service-accounts": {"default": account, identity.email: account},
        },
    }


def _written(values: list[str]) -> str:
    return "".join(f"{value}\n" for value in values)

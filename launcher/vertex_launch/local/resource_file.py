"""The JSON file that stores a resource, at a path such as .vertex/projects/P/locations/L/customJobs/ID.json."""

import json
import os
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from vertex_launch.job.state_dir import private, private_file
from vertex_launch.untrusted import jsons
from vertex_launch.untrusted.regular_file import read_regular


def write(file: Path, resource: Mapping[str, Any]) -> None:
    """Write a resource atomically. Concurrent readers see either the old or the new version."""
    private(file.parent)
    part = file.with_suffix(".part")
    with open(part, "w", encoding="utf-8", opener=private_file) as written:
        written.write(json.dumps(resource, indent=1))
    os.replace(part, file)


def read(file: Path, name: str) -> dict[str, Any] | None:
    """Return the resource with this name, or None if the file doesn't contain one."""
    try:
        resource = jsons.loads(read_regular(file))
    except (OSError, ValueError):
        return None
    return resource if isinstance(resource, dict) and resource.get("name") == name else None


def moment(seconds: float) -> str:
    """Convert a Unix time in seconds to the API's timestamp format."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def now() -> str:
    """Return the current time in the API's timestamp format."""
    return moment(time.time())

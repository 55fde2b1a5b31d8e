"""New folders in buckets, to which models and datasets are exported."""

import re
from pathlib import Path

from vertex_launch.addresses import object_path
from vertex_launch.local.api.errors import ApiError
from vertex_launch.local.resource_file import now

FOREIGN = re.compile(r"[^\w.-]", re.ASCII)  # what a display name may have and a folder here has not


def new_folder(prefix: str, name: str, buckets: Path) -> tuple[str, Path]:
    """Return address and path of a folder at `prefix` with this name and the time; raises ApiError INVALID_ARGUMENT."""
    address = f"{prefix.rstrip('/')}/{FOREIGN.sub('_', name)}-{now()[:-4]}Z"  # the documentation has milliseconds
    folder = object_path(address, buckets)
    if folder is None:
        raise ApiError("INVALID_ARGUMENT", f'"{prefix}" is no folder in a bucket; write gs://BUCKET/FOLDER')
    return address, folder

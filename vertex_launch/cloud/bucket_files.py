"""Files of a job, from its bucket to this machine."""

from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

from google.api_core.client_options import ClientOptions
from google.cloud.storage import Client

from vertex_launch.addresses import name_fault
from vertex_launch.cloud.service import Service
from vertex_launch.errors import FaultError


def blobs(address: str, service: Service) -> Iterator[tuple[PurePosixPath, Any]]:
    """The objects of a folder, with their names below it; raises FaultError for one that cannot be a file."""
    bucket, _, prefix = f"{address.rstrip('/')}/".removeprefix("gs://").partition("/")
    options = ClientOptions(api_endpoint=service.endpoint) if service.endpoint else None  # type: ignore[no-untyped-call, unused-ignore]
    client = Client(project=bucket, credentials=service.session.credentials, client_options=options)
    for blob in client.list_blobs(bucket, prefix=prefix):
        name = blob.name.removeprefix(prefix)
        if name.endswith("/") or not name:
            continue
        if name_fault(name):
            raise FaultError(f"gs://{bucket}/{blob.name}: cannot be a file here; copy the others by hand")
        yield PurePosixPath(name), blob


def place(folder: Path, name: PurePosixPath) -> Path:
    """Where the file belongs, in folders that are there."""
    file = folder.joinpath(*name.parts)
    file.parent.mkdir(parents=True, exist_ok=True)
    return file

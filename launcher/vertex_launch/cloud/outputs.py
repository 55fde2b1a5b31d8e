"""Copies a job's model and TensorBoard curves from the bucket to this machine."""

import shutil
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

from google.api_core.client_options import ClientOptions
from google.cloud.storage import Client

from vertex_launch.cloud.service import Service
from vertex_launch.errors import FaultError
from vertex_launch.job.addresses import name_fault
from vertex_launch.job.job_resource import Resource, id_of, output_folder, state, trials
from vertex_launch.job.spec import OUTPUT

EVENTS = ".tfevents."  # part of the name of each file with curves


def model_address(job: Resource) -> str:
    """Return the URI of a job's model. For a tuning job, return the URI of the best trial's model.

    Raises FaultError if there is no best trial or no output folder.

    Source: Vertex AI documentation, "Environment variables for special Cloud Storage directories", AIP_MODEL_DIR.
    """
    output = _output(job, "model")
    if "studySpec" not in job:
        return f"{output}/model/"
    best = next((trial["id"] for trial in trials(job) if trial["best"]), "")
    if not best:
        raise FaultError(f"{job['name']}: no trial has reported its metric yet, so the best trial isn't known")
    return f"{output}/{best}/model/"


def fetch_model(job: Resource, service: Service, target: Path) -> Iterator[tuple[str, int]]:
    """Copy a job's model into a new folder. For each copied file, yield its name and its size in bytes.

    The folder is created only after all files have been copied. Each file's checksum is verified.
    Raises FaultError if the model is missing or the folder already exists, and OSError if it can't be written to.
    """
    if target.exists():
        raise FaultError(f"{target}: this folder already exists; remove it, or use --to to specify a different one")
    if not target.absolute().parent.is_dir():
        raise FaultError(f"{target}: the folder {target.absolute().parent} doesn't exist; create it, or change --to")
    address = model_address(job)
    blobs = [*_blobs(address, service)]
    if not blobs:
        raise FaultError(f"{address}: the model doesn't exist; job {id_of(job['name'])} is {state(job)}; see `status`")
    part = target.with_name(f".{target.name}.part")
    shutil.rmtree(part, ignore_errors=True)  # left by an interrupted copy
    for name, blob in blobs:
        file = _place(part, name)
        blob.download_to_filename(str(file))
        yield str(name), file.stat().st_size
    part.rename(target)


def copy_curves(job: Resource, service: Service, folder: Path) -> int:
    """Append new data from a job's TensorBoard files to local copies, and return the number of files.

    For a tuning job, copy the curves of all trials. This function copies the curves because TensorBoard can't read from
    a bucket without additional packages. Raises FaultError if the job doesn't have an output folder.
    """
    output = _output(job, "curves")
    address = output if "studySpec" in job else f"{output}/logs"
    blobs = [(name, blob) for name, blob in _blobs(address, service) if EVENTS in name.name]
    for name, blob in blobs:
        file = _place(folder, name)
        size = file.stat().st_size if file.exists() else 0
        if size < (blob.size or 0):
            with file.open("ab") as target:
                target.write(blob.download_as_bytes(start=size, end=blob.size - 1))
    return len(blobs)


def _output(job: Resource, kept: str) -> str:
    """Return the job's output folder. Raises FaultError if the job doesn't set an output folder."""
    output = output_folder(job)
    if not output:
        raise FaultError(f"{job['name']}: the job doesn't set an output folder, so it has no {kept}; set {OUTPUT}")
    return output


def _blobs(address: str, service: Service) -> Iterator[tuple[PurePosixPath, Any]]:
    """Yield the relative name and the blob of each object in a bucket folder.

    Raises FaultError if the name of an object isn't a valid local filename.
    """
    bucket, _, prefix = f"{address.rstrip('/')}/".removeprefix("gs://").partition("/")
    options = ClientOptions(api_endpoint=service.endpoint) if service.endpoint else None  # type: ignore[no-untyped-call, unused-ignore]
    client = Client(project=bucket, credentials=service.session.credentials, client_options=options)
    for blob in client.list_blobs(bucket, prefix=prefix):
        name = blob.name.removeprefix(prefix)
        if name.endswith("/") or not name:
            continue
        if name_fault(name):
            raise FaultError(
                f"gs://{bucket}/{blob.name}: this name isn't a valid local filename; copy the other files manually"
            )
        yield PurePosixPath(name), blob


def _place(folder: Path, name: PurePosixPath) -> Path:
    file = folder.joinpath(*name.parts)
    file.parent.mkdir(parents=True, exist_ok=True)
    return file

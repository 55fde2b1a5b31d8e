"""The model that a job has exported, from the bucket to this machine."""

import shutil
from collections.abc import Iterator
from pathlib import Path

from vertex_launch.cloud import bucket_files
from vertex_launch.cloud.service import Service
from vertex_launch.errors import FaultError
from vertex_launch.job_resource import Resource, id_of, output_folder, state, trials
from vertex_launch.spec import OUTPUT


def address(job: Resource) -> str:
    """Where the model of a job lies, or that of the best trial of a search; raises FaultError.

    Source: Vertex AI documentation, "Environment variables for special Cloud Storage directories", AIP_MODEL_DIR.
    """
    output = output_folder(job)
    if not output:
        raise FaultError(f"{job['name']}: names no output folder, so it keeps no model; set {OUTPUT}")
    if "studySpec" not in job:
        return f"{output}/model/"
    best = next((trial["id"] for trial in trials(job) if trial["best"]), "")
    if not best:
        raise FaultError(f"{job['name']}: no trial has reported its metric yet, so there is no best one")
    return f"{output}/{best}/model/"


def fetch(job: Resource, service: Service, target: Path) -> Iterator[tuple[str, int]]:
    """Copy the model of a job into a new folder; yields the name and the bytes of each file once it is there.

    The folder appears when all of it is whole: each file is held against the checksum that the bucket keeps.

    Raises:
        FaultError: there is no model, or the folder exists.
        OSError: it cannot be written.
    """
    if target.exists():
        raise FaultError(f"{target}: exists already; remove it, or name another folder with --to")
    if not target.absolute().parent.is_dir():
        raise FaultError(f"{target}: there is no folder {target.absolute().parent}; make it, or name another with --to")
    where = address(job)
    found = [*bucket_files.blobs(where, service)]
    if not found:
        raise FaultError(f"{where}: there is no model; job {id_of(job['name'])} is {state(job)}, see status")
    part = target.with_name(f".{target.name}.part")
    shutil.rmtree(part, ignore_errors=True)  # of one that was cut off
    for name, blob in found:
        file = bucket_files.place(part, name)
        blob.download_to_filename(str(file))
        yield str(name), file.stat().st_size
    part.rename(target)

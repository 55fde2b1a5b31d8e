"""The curves of a job, copied from its bucket as they grow: TensorBoard by itself reads no bucket."""

from dataclasses import dataclass
from pathlib import Path

from vertex_launch.cloud import bucket_files
from vertex_launch.cloud.service import Service
from vertex_launch.errors import FaultError
from vertex_launch.job_resource import ENDED, Resource, id_of, output_folder, state
from vertex_launch.spec import OUTPUT

EVENTS = ".tfevents."  # in the name of each file of curves


@dataclass(frozen=True)
class Curves:
    """The curves of a job, or of all trials of a search, and the folder that they are copied to."""

    job: Resource
    service: Service
    folder: Path

    def update(self) -> int:
        """Append what is new to each file; returns how many files there are. Such files only grow.

        Raises:
            FaultError: the job keeps none.
        """
        output = output_folder(self.job)
        if not output:
            raise FaultError(f"{self.job['name']}: names no output folder, so it keeps no curves; set {OUTPUT}")
        where = output if "studySpec" in self.job else f"{output}/logs"
        found = [(name, blob) for name, blob in bucket_files.blobs(where, self.service) if EVENTS in name.name]
        for name, blob in found:
            file = bucket_files.place(self.folder, name)
            there = file.stat().st_size if file.exists() else 0
            if there < (blob.size or 0):
                with file.open("ab") as target:
                    target.write(blob.download_as_bytes(start=there, end=blob.size - 1))
        return len(found)

    def require(self) -> None:
        """Raises FaultError where there are none yet."""
        if not self.update():
            id = id_of(self.job["name"])
            stands = f"is {state(self.job)} and has no curves{'' if state(self.job) in ENDED else ' yet'}"
            raise FaultError(f"job {id} {stands}; a trainer writes them to AIP_TENSORBOARD_LOG_DIR")

"""Folders of a job: AIP_* variables and gs:// addresses -> paths.

Vertex AI mounts every bucket under /gcs in each replica and names the job's folders by gs:// address.
GCS_MOUNT, set by the local Vertex, is another folder in place of /gcs; nothing else differs there.
"""

import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from trainer.vertex.errors import TrainerError

# Where cloudml-hypertune 0.1.0.dev6 writes, and the service reads, unless told otherwise.
METRIC_FILE = "/tmp/hypertune/output.metrics"
FOLDERS = {"model": "AIP_MODEL_DIR", "checkpoints": "AIP_CHECKPOINT_DIR", "logs": "AIP_TENSORBOARD_LOG_DIR"}


@dataclass(frozen=True)
class Trial:
    """One trial of a hyperparameter tuning job, and the file from which the service takes its metrics."""

    id: str
    metric_file: Path


@dataclass(frozen=True)
class Storage:
    """The folders of one job; without Vertex they are all under ./output."""

    model: Path = Path("output/model")
    checkpoints: Path = Path("output/checkpoints")
    logs: Path = Path("output/logs")
    mount: Path = Path("/gcs")
    trial: Trial | None = None  # only in hyperparameter tuning
    job: str = ""  # id of the job, the same after a restart; "" without Vertex

    @property
    def emulated(self) -> bool:
        """True on a laptop: Vertex itself always mounts buckets under /gcs."""
        return self.mount != Path("/gcs")

    def path(self, address: str) -> Path:
        """Return a gs://, /gcs or ordinary address as a path. Raises TrainerError for one that no mount can serve."""
        for prefix in ("gs://", "/gcs/"):
            if address.startswith(prefix):
                return self.mount / address.removeprefix(prefix).lstrip("/")
        if "://" in address:
            raise TrainerError(f"{address}: neither a path nor gs://BUCKET/FOLDER; copy the data to a bucket first")
        return Path(address)


def copy_files(source: Path, target: Path) -> None:
    """Copy all files below `source`: their content alone, as a mounted bucket keeps no modes and no times."""
    for path in sorted(source.rglob("*")):
        if path.is_file():
            copy = target / path.relative_to(source)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, copy)


def from_env(environ: Mapping[str, str]) -> Storage:
    """AIP_MODEL_DIR, AIP_CHECKPOINT_DIR and AIP_TENSORBOARD_LOG_DIR, each with its default; the tuning trial."""
    mounted = Storage(mount=Path(environ.get("GCS_MOUNT") or "/gcs"))
    folders = {name: mounted.path(environ[variable]) for name, variable in FOLDERS.items() if environ.get(variable)}
    id, file = environ.get("CLOUD_ML_TRIAL_ID", ""), environ.get("CLOUD_ML_HP_METRIC_FILE", "")
    trial = Trial(id or "0", Path(file or METRIC_FILE)) if id or file else None
    return replace(mounted, **folders, trial=trial, job=environ.get("CLOUD_ML_JOB_ID", ""))

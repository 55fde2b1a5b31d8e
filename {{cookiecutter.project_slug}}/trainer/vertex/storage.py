"""Maps a job's AIP_* variables and gs:// URIs to paths.

Vertex AI mounts every bucket under /gcs in each replica, and passes the job's folders as gs:// URIs. The local Vertex
sets GCS_MOUNT to a folder that replaces /gcs. In all other respects, the local Vertex passes folders as Vertex AI does.
"""

import json
import shutil
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from trainer.vertex.errors import TrainerError

# The default file that cloudml-hypertune 0.1.0.dev6 writes and the service reads.
METRIC_FILE = "/tmp/hypertune/output.metrics"
CHUNK = 2**20  # bytes to read at a time
MOUNT = Path("/gcs")
LARGEST = 2**26  # bytes of a JSON file, enough for the commit marker of a million files
FOLDERS = {"model": "AIP_MODEL_DIR", "checkpoints": "AIP_CHECKPOINT_DIR", "logs": "AIP_TENSORBOARD_LOG_DIR"}


@dataclass(frozen=True)
class Trial:
    """One trial of a hyperparameter tuning job, and the file from which Vertex AI reads its metrics."""

    id: str
    metric_file: Path


@dataclass(frozen=True)
class Storage:
    """The folders of one job. If a job's environment variables aren't set, all folders are under ./output."""

    model: Path = Path("output/model")
    checkpoints: Path = Path("output/checkpoints")
    logs: Path = Path("output/logs")
    mount: Path = MOUNT
    trial: Trial | None = None  # only in hyperparameter tuning
    job: str = ""  # job ID, which stays the same after a restart; "" outside Vertex AI

    @property
    def emulated(self) -> bool:
        """True if the job runs in the local Vertex. Vertex AI always mounts buckets under /gcs."""
        return self.mount != MOUNT

    def path(self, address: str) -> Path:
        """Return the path for a gs:// URI, a /gcs path, or an ordinary path. Raises TrainerError for all other URIs."""
        for prefix in ("gs://", "/gcs/"):
            if address.startswith(prefix):
                return self.mount / address.removeprefix(prefix).lstrip("/")
        if "://" in address:
            raise TrainerError(f"{address} is neither a path nor gs://BUCKET/FOLDER; copy the data to a bucket first")
        return Path(address)


def copy_files(source: Path, target: Path) -> None:
    """Copy the contents of all files in `source`, but not their modes and timestamps, which buckets don't store."""
    for path in sorted(source.rglob("*")):
        if path.is_file():
            copy = target / path.relative_to(source)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, copy)


def checksum(file: Path) -> int:
    value = 0
    with file.open("rb", buffering=0) as stream:
        while chunk := stream.read(CHUNK):
            value = zlib.crc32(chunk, value)
    return value


def read_json(file: Path) -> Any:
    """Return the value in a JSON file.

    Raises OSError or ValueError if the path can't be read or isn't a regular file.
    """
    size = file.stat().st_size
    if not file.is_file() or size > LARGEST:
        raise ValueError(f"the path isn't a regular file of at most {LARGEST} bytes")
    try:
        return json.loads(file.read_text())
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def write_json(file: Path, value: Any) -> None:
    """Replace a JSON file atomically, so that a reader sees either the old or the new value."""
    aside = file.with_name(f"{file.name}.partial")
    aside.write_text(json.dumps(value, indent=1))
    aside.replace(file)


def from_env(environ: Mapping[str, str]) -> Storage:
    """Read the job's folders from AIP_* variables, and the tuning trial from CLOUD_ML_* variables.

    If a variable isn't set, use the folder's default.
    """
    mounted = Storage(mount=Path(environ.get("GCS_MOUNT") or MOUNT))
    folders = {name: mounted.path(environ[variable]) for name, variable in FOLDERS.items() if environ.get(variable)}
    id, file = environ.get("CLOUD_ML_TRIAL_ID", ""), environ.get("CLOUD_ML_HP_METRIC_FILE", "")
    trial = Trial(id or "0", Path(file or METRIC_FILE)) if id or file else None
    return replace(mounted, **folders, trial=trial, job=environ.get("CLOUD_ML_JOB_ID", ""))

"""Tests that outputs can be written, before the training, and reports a disk that fails during it, in one sentence.

The test writes a probe file: permission bits tell nothing about a mounted bucket or a disk mounted read-only.
"""

import contextlib
import errno
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from trainer.vertex.errors import TrainerError
from trainer.vertex.log import say, warn
from trainer.vertex.storage import Storage

# Outputs of each kind of replica.
CHIEF = ("model", "checkpoints", "logs", "metric file")
WORKER = ("checkpoints",)

PROBE = ".writable-"
DENIED = (errno.EACCES, errno.EPERM)
SPACE = "make space there, or choose another output folder"
IN_THE_WAY = "a file is in the way: remove it, or choose another output folder"
USER = "run as root, as the image does, or let this user write there"
BUCKET = "look whether there is such a bucket, and whether the job's service account has Storage Object Admin on it"
CURES: dict[int | None, str] = {
    **dict.fromkeys((None, errno.ENOSPC, errno.EDQUOT), SPACE),
    **dict.fromkeys((errno.ENOTDIR, errno.EEXIST, errno.EISDIR), IN_THE_WAY),
    errno.ENOENT: f"if somebody has removed it, make it again; otherwise {BUCKET}",
    errno.EROFS: "choose an output folder on a disk that is not read-only",
}


def require_writable(storage: Storage, kinds: tuple[str, ...]) -> list[Path]:
    """Write in the folders of these kinds of outputs, or above where they are still to come; returns these folders.

    Raises TrainerError, with a line for each place that cannot be written.
    """
    places = {"model": storage.model, "checkpoints": storage.checkpoints, "logs": storage.logs}
    if storage.trial:
        places["metric file"] = storage.trial.metric_file
    folders, faults = [], []
    for kind in (kind for kind in places if kind in kinds):
        try:
            if kind == "metric file" and places[kind].exists():
                places[kind].open("r+b").close()  # it stays as it is
            else:
                folders.append(_probe(storage, places[kind]))
        except OSError as error:
            faults.append(f"{kind}: {_sentence(places[kind], error)}")
    if faults:
        raise TrainerError("\n".join(faults))
    return folders


@contextlib.contextmanager
def writing(path: Path, *others: type[Exception]) -> Iterator[None]:
    """Turn an error of the block, which writes at or below `path`, into the one sentence of a TrainerError.

    Args:
        others: exceptions of a framework that stand for an error of the file system.
    """
    errors: tuple[type[Exception], ...] = (OSError, *others)
    try:
        yield
    except errors as error:
        raise TrainerError(_sentence(path, error)) from None


class Dispensable:
    """A place that a run can do without: a failure there is one warning, until it can be written again."""

    def __init__(self, path: Path) -> None:
        self._path, self._is_lost = path, False

    @contextlib.contextmanager
    def writing(self, *others: type[Exception]) -> Iterator[None]:
        """End the block, which writes at or below the path, at an error as of `writing`, and go on behind it."""
        try:
            with writing(self._path, *others):
                yield
        except TrainerError as error:
            if not self._is_lost:
                warn(f"{error}; training goes on without")
            self._is_lost = True
        else:
            if self._is_lost:
                say(f"{self._path} can be written again")
            self._is_lost = False


def _probe(storage: Storage, path: Path) -> Path:
    """Write in `path`, or in the nearest folder above it that exists, and return that; raises OSError."""
    places = [path, *path.parents]
    if not storage.emulated and path.is_relative_to(storage.mount):
        # Where no bucket is mounted, root could make its folder, and a whole training would be lost with the machine.
        places = places[: -len(storage.mount.parts)] or places
    folder = next((place for place in places if place.exists()), places[-1])
    with tempfile.NamedTemporaryFile(prefix=PROBE, dir=folder) as probe:
        probe.write(b"\n")  # a mounted bucket refuses only what has a content, when the file is closed
    return folder


def _sentence(path: Path, error: Exception) -> str:
    """`/gcs/b/run/logs cannot be written (Permission denied: /gcs/b/run, as user 1000); run as root ...`"""
    reason, number = str(error).partition("\n")[0], None
    if isinstance(error, OSError) and error.errno:
        number, file = error.errno, Path(error.filename2 or error.filename or "")
        place = file.parent if file.name.startswith(PROBE) else file  # the name of a probe says nothing
        reason = f"{os.strerror(number)}: {place}" if error.filename else os.strerror(number)
    if number in DENIED:
        user = os.geteuid()
        return f"{path} cannot be written ({reason}, as user {user}); {USER if user else BUCKET}"
    return f"{path} cannot be written ({reason}); {CURES.get(number, BUCKET)}"

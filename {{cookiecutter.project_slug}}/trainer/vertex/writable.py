"""Verifies that outputs are writable before training starts, and reports each disk error in one sentence.

This verification writes a probe file, because permission bits aren't reliable for a mounted bucket or a read-only disk.
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

# The outputs of each type of replica.
CHIEF = ("model", "checkpoints", "logs", "metric file")
WORKER = ("checkpoints",)

PROBE = ".writable-"
DENIED = (errno.EACCES, errno.EPERM)
SPACE = "free some space on this disk, or choose another output folder"
IN_THE_WAY = "a file is in the way; remove it, or choose another output folder"
USER = "run as root, as the image does, or give this user write permission"
BUCKET = "check that the bucket exists, and that the job's service account has the Storage Object Admin role"
CURES: dict[int | None, str] = {
    **dict.fromkeys((None, errno.ENOSPC, errno.EDQUOT), SPACE),
    **dict.fromkeys((errno.ENOTDIR, errno.EEXIST, errno.EISDIR), IN_THE_WAY),
    errno.ENOENT: f"if the folder was removed, create it again; otherwise {BUCKET}",
    errno.EROFS: "choose an output folder on a disk that isn't read-only",
}


def require_writable(storage: Storage, kinds: tuple[str, ...]) -> list[Path]:
    """Write a probe file to the folder for each of these output types, and return the tested folders.

    If a folder doesn't exist yet, the nearest existing parent folder is tested.

    Raises TrainerError if outputs can't be written. The error's text has one line per output.
    """
    places = {"model": storage.model, "checkpoints": storage.checkpoints, "logs": storage.logs}
    if storage.trial:
        places["metric file"] = storage.trial.metric_file
    folders, faults = [], []
    for kind in (kind for kind in places if kind in kinds):
        try:
            if kind == "metric file" and places[kind].exists():
                places[kind].open("r+b").close()  # its content doesn't change
            else:
                folders.append(_probe(storage, places[kind]))
        except OSError as error:
            faults.append(f"{kind}: {_sentence(places[kind], error)}")
    if faults:
        raise TrainerError("\n".join(faults))
    return folders


@contextlib.contextmanager
def writing(path: Path, *others: type[Exception]) -> Iterator[None]:
    """Convert a file system error in the block to a one-sentence TrainerError.

    The block writes to `path` or to a folder under `path`.

    Args:
        others: the framework's exception types for file system errors.
    """
    errors: tuple[type[Exception], ...] = (OSError, *others)
    try:
        yield
    except errors as error:
        raise TrainerError(_sentence(path, error)) from None


class Dispensable:
    """An output that a run doesn't require. If writing fails, only one warning is printed until a write succeeds."""

    def __init__(self, path: Path) -> None:
        self._path, self._is_lost = path, False

    @contextlib.contextmanager
    def writing(self, *others: type[Exception]) -> Iterator[None]:
        """Suppress a file system error in the block and print a warning. The block writes to the output's path."""
        try:
            with writing(self._path, *others):
                yield
        except TrainerError as error:
            if not self._is_lost:
                warn(f"{error}; training continues without this output")
            self._is_lost = True
        else:
            if self._is_lost:
                say(f"{self._path} can be written again")
            self._is_lost = False


def _probe(storage: Storage, path: Path) -> Path:
    """Write a probe file to `path` or to the nearest existing parent folder. Return the probe file's folder."""
    places = [path, *path.parents]
    if not storage.emulated and path.is_relative_to(storage.mount):
        # If no bucket is mounted, root could create its folder, and all outputs would be lost with the machine.
        places = places[: -len(storage.mount.parts)] or places
    folder = next((place for place in places if place.exists()), places[-1])
    with tempfile.NamedTemporaryFile(prefix=PROBE, dir=folder) as probe:
        probe.write(b"\n")  # a mounted bucket rejects a file only when it is closed, and only if it has content
    return folder


def _sentence(path: Path, error: Exception) -> str:
    """Format a file system error.

    Example: `/gcs/b/run/logs can't be written (Permission denied: /gcs/b/run, as user 1000); run as ...`
    """
    reason, number = str(error).partition("\n")[0], None
    if isinstance(error, OSError) and error.errno:
        number, file = error.errno, Path(error.filename2 or error.filename or "")
        place = file.parent if file.name.startswith(PROBE) else file  # the probe's name doesn't help the user
        reason = f"{os.strerror(number)}: {place}" if error.filename else os.strerror(number)
    if number in DENIED:
        user = os.geteuid()
        return f"{path} can't be written ({reason}, as user {user}); {USER if user else BUCKET}"
    return f"{path} can't be written ({reason}); {CURES.get(number, BUCKET)}"

"""Tests that outputs can be written, before the training, and reports a disk that fails during it, in one sentence.

The test writes a probe file: permission bits tell nothing about a mounted bucket or a disk mounted read-only.
"""

import contextlib
import errno
import os
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

from trainer.vertex.errors import TrainerError
from trainer.vertex.storage import Storage

# What each kind of replica writes.
CHIEF = ("model", "checkpoints", "logs", "metric file")
WORKER = ("checkpoints",)
EVALUATOR = ("checkpoints", "logs")

PROBE = ".writable-"

DENIED = (errno.EACCES, errno.EPERM)
FULL = (errno.ENOSPC, errno.EDQUOT)
IN_THE_WAY = (errno.ENOTDIR, errno.EEXIST, errno.EISDIR)


def require(storage: Storage, kinds: tuple[str, ...]) -> None:
    """Return if this replica can write all its outputs; leaves nothing behind.

    Args:
        kinds: `CHIEF`, `WORKER` or `EVALUATOR`.

    Raises:
        TrainerError: a line for each place that cannot be written.
    """
    places: dict[str, tuple[Path, Callable[[Storage, Path], None]]] = {
        "model": (storage.model, _try_folder),
        "checkpoints": (storage.checkpoints, _try_folder),
        "logs": (storage.logs, _try_folder),
    }
    if storage.trial:
        places["metric file"] = (storage.trial.metric_file, _try_file)
    faults = []
    for kind, (path, attempt) in places.items():
        try:
            if kind in kinds:
                attempt(storage, path)
        except OSError as error:
            faults.append(_sentence(path, error, kind))
    if faults:
        raise TrainerError("\n".join(faults))


@contextlib.contextmanager
def writing(path: Path, *others: type[Exception]) -> Iterator[None]:
    """Turn an error of the block, which writes at or below `path`, into one sentence.

    Args:
        others: exceptions of a framework that stand for an error of the file system.

    Raises:
        TrainerError: it cannot be written.
    """
    try:
        yield
    except Exception as error:
        if isinstance(error, (OSError, *others)):
            raise TrainerError(_sentence(path, error)) from None
        raise


def _try_folder(storage: Storage, folder: Path) -> None:
    """Write where the folder will be made, or in it if it is there; raises OSError."""
    there = _nearest(storage, folder)
    probe = there / f"{PROBE}{uuid.uuid4().hex}"
    try:
        probe.write_bytes(b"\n")  # a mounted bucket refuses only what has a content, when the file is closed
    except OSError:
        with contextlib.suppress(OSError):
            probe.unlink()
        raise
    probe.unlink()


def _try_file(storage: Storage, file: Path) -> None:
    """Write where the file will be made; one that is there stays as it is."""
    if file.exists():
        file.open("r+b").close()
    else:
        _try_folder(storage, file.parent)


def _nearest(storage: Storage, folder: Path) -> Path:
    """The folder itself, or the nearest one above it that is there; in the cloud none above its bucket.

    Where no bucket is mounted, root could make its folder, and a whole training would be lost with the machine.
    """
    bucket = None
    if not storage.emulated and folder.is_relative_to(storage.mount):
        bucket = storage.mount.joinpath(*folder.relative_to(storage.mount).parts[:1])
    for there in (folder, *folder.parents):
        if there.exists():
            break
        if there == bucket:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(bucket))
    if not there.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(there))
    return there


def _sentence(path: Path, error: Exception, kind: str = "") -> str:
    """`logs: /gcs/b/run/logs cannot be written (Permission denied: /gcs/b/run, as user 1000); run as root ...`"""
    start, number, where = f"{kind}: " if kind else "", None, ""
    reason = str(error).partition("\n")[0]
    if isinstance(error, OSError) and error.errno:
        reason, number = os.strerror(error.errno), error.errno
        name = error.filename2 or error.filename
        where = f": {_folder(name)}" if name else ""
    who = f", as user {os.geteuid()}" if number in DENIED else ""
    return f"{start}{path} cannot be written ({reason}{where}{who}); {_cure(number)}"


def _folder(name: str) -> Path:
    """The folder of a probe file, whose own name says nothing; any other file."""
    path = Path(name)
    return path.parent if path.name.startswith(PROBE) else path


def _cure(number: int | None) -> str:
    if number in DENIED and os.geteuid() != 0:
        return "run as root, as the image does, or let this user write there"
    if number in (None, *FULL):
        return "make space there, or choose another output folder"
    if number in IN_THE_WAY:
        return "a file is in the way: remove it, or choose another output folder"
    if number == errno.EROFS:
        return "choose an output folder on a disk that is not read-only"
    return "look whether there is such a bucket, and whether the job's service account has Storage Object Admin on it"

"""Files that others leave, such as a trainer: read if they are regular files, up to a bound, and never waited for."""

import errno
import fcntl
import os
import stat
from pathlib import Path
from typing import IO, Any, BinaryIO

LARGEST = 2**26  # bytes


def open_regular(path: Path) -> BinaryIO:
    """Open a file to read its bytes; raises OSError for a pipe, a device or a folder, also behind a link."""
    return open(path, "rb", opener=_opened)


def read_regular(path: Path, most: int = LARGEST) -> bytes:
    """Return the bytes of a regular file; raises OSError for another file, and for one of more than `most` bytes."""
    with open_regular(path) as file:
        data = file.read(most + 1)
    if len(data) > most:
        raise OSError(errno.EFBIG, f"it is larger than {most // 2**20} MiB", str(path))
    return data


def locked_elsewhere(file: IO[Any], lock: int = fcntl.LOCK_SH) -> bool:
    """Whether another process keeps this one from the lock; else this one holds it until it closes the file."""
    try:
        fcntl.flock(file, lock | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    return False


def _opened(path: str, flags: int) -> int:
    # Without O_NONBLOCK, a pipe would hold up its reader until somebody writes to it.
    descriptor = os.open(path, flags | os.O_NONBLOCK | os.O_NOCTTY)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it is no regular file", path)
    return descriptor

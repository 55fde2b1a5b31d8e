"""Functions that read untrusted files, such as those that a trainer writes.

These functions accept only regular files and never block.
"""

import errno
import fcntl
import os
import stat
from pathlib import Path
from typing import IO, Any, BinaryIO

LARGEST = 2**26  # bytes


def open_regular(path: Path) -> BinaryIO:
    """Open a file in binary mode. Raises OSError if the path or the target of a link isn't a regular file."""
    return open(path, "rb", opener=_opened)


def read_regular(path: Path, most: int = LARGEST) -> bytes:
    """Return the bytes of a file. Raises OSError if the file isn't a regular file or has more than `most` bytes."""
    with open_regular(path) as file:
        data = file.read(most + 1)
    if len(data) > most:
        raise OSError(errno.EFBIG, f"it is larger than {most // 2**20} MiB", str(path))
    return data


def locked_elsewhere(file: IO[Any], lock: int = fcntl.LOCK_SH) -> bool:
    """Return whether another process holds the lock.

    If no other process holds the lock, acquire it and hold it until the file is closed.
    """
    try:
        fcntl.flock(file, lock | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    return False


def _opened(path: str, flags: int) -> int:
    # Without O_NONBLOCK, opening a pipe would block until another process opens it for writing.
    descriptor = os.open(path, flags | os.O_NONBLOCK | os.O_NOCTTY)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it isn't a regular file", path)
    return descriptor

"""All lines of one job's replicas in one file, in the order of their arrival."""

import contextlib
import fcntl
import io
import json
import threading
from collections.abc import Iterator
from pathlib import Path

from vertex_launch.job.state_dir import private, private_file
from vertex_launch.local.resource_file import now
from vertex_launch.untrusted.regular_file import locked_elsewhere, open_regular

SERVICE = "service"  # has a line of its own in the place of a replica, as in Cloud Logging


class Journal:
    """Writes the lines of one job; thread-safe. The file is locked for as long as the job runs."""

    def __init__(self, path: Path) -> None:
        private(path.parent)
        self._file = io.FileIO(path, "ab", opener=private_file)
        self._lock = threading.Lock()
        self._time = ""  # of the last line
        with contextlib.suppress(OSError):  # some network file systems have no locks
            fcntl.flock(self._file, fcntl.LOCK_EX)

    def write(self, replica: str, line: str, severity: str = "INFO") -> None:
        """Add a line; `severity` is what it has if it does not say one itself."""
        with self._lock, contextlib.suppress(OSError):  # a full disk does not end the job
            if not self._file.closed:
                self._time = max(self._time, now())  # readers search by time, and a clock may be set back
                entry = {"timestamp": self._time, "replica": replica, "line": line, "severity": severity}
                self._file.write(f"{json.dumps(entry)}\n".encode())

    def close(self) -> None:
        with self._lock:
            self._file.close()


def lines(path: Path, begin: int, end: int) -> Iterator[tuple[int, bytes]]:
    """Yield the lines that begin in this part of a journal, each behind its offset in bytes."""
    with open_regular(path) as file:
        file.seek(max(begin - 1, 0))
        offset = file.tell() + (len(file.readline()) if begin else 0)
        while offset < end and (line := file.readline()):
            yield offset, line
            offset += len(line)


def is_open(path: Path) -> bool:
    """Whether some process still writes this journal, so whether its job still runs."""
    with contextlib.suppress(OSError), open_regular(path) as file:
        return locked_elsewhere(file)
    return False

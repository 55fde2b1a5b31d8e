"""Reads and writes a job's journal, a file that contains the output lines of all replicas in order of arrival."""

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

SERVICE = "service"  # the name for lines of the service instead of a replica, also used in Cloud Logging


class Journal:
    """A thread-safe writer for the journal of one job. The journal file is locked while the job runs."""

    def __init__(self, path: Path) -> None:
        private(path.parent)
        self._file = io.FileIO(path, "ab", opener=private_file)
        self._lock = threading.Lock()
        self._time = ""  # the time of the last line
        with contextlib.suppress(OSError):  # some network file systems don't support locks
            fcntl.flock(self._file, fcntl.LOCK_EX)

    def write(self, replica: str, line: str, severity: str = "INFO") -> None:
        """Add a line to the journal. The `severity` argument applies only if the line doesn't specify its own."""
        with self._lock, contextlib.suppress(OSError):  # a full disk doesn't end the job
            if not self._file.closed:
                self._time = max(self._time, now())  # readers search by time, and the clock can be set back
                entry = {"timestamp": self._time, "replica": replica, "line": line, "severity": severity}
                self._file.write(f"{json.dumps(entry)}\n".encode())

    def close(self) -> None:
        with self._lock:
            self._file.close()


def lines(path: Path, begin: int, end: int) -> Iterator[tuple[int, bytes]]:
    """Yield each journal line that begins between the byte offsets `begin` and `end`, along with its offset."""
    with open_regular(path) as file:
        file.seek(max(begin - 1, 0))
        offset = file.tell() + (len(file.readline()) if begin else 0)
        while offset < end and (line := file.readline()):
            yield offset, line
            offset += len(line)


def is_open(path: Path) -> bool:
    """Return whether a process is still writing to this journal, which means that the job is still running."""
    with contextlib.suppress(OSError), open_regular(path) as file:
        return locked_elsewhere(file)
    return False

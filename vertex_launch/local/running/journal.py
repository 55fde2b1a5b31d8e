"""All lines of one job's replicas in one file, in the order of their arrival."""

import contextlib
import fcntl
import io
import json
import threading
from pathlib import Path

from vertex_launch.local.resource_file import now
from vertex_launch.regular_file import open_regular
from vertex_launch.state_dir import private, private_file


class Journal:
    """Writes the lines of one job; thread-safe. The file is locked for as long as the job runs."""

    def __init__(self, path: Path) -> None:
        private(path.parent)
        self._file = io.FileIO(path, "ab", opener=private_file)
        self._lock = threading.Lock()
        with contextlib.suppress(OSError):  # some network file systems have no locks
            fcntl.flock(self._file, fcntl.LOCK_EX)

    def write(self, replica: str, line: str, severity: str = "INFO") -> None:
        """Add a line; `severity` is what it has if it does not say one itself."""
        with self._lock, contextlib.suppress(OSError):  # a full disk does not end the job
            if not self._file.closed:
                entry = {"timestamp": now(), "replica": replica, "line": line, "severity": severity}
                self._file.write(f"{json.dumps(entry)}\n".encode())

    def close(self) -> None:
        with self._lock:
            self._file.close()


def is_open(path: Path) -> bool:
    """Whether some process still writes this journal, so whether its job still runs."""
    with contextlib.suppress(OSError), open_regular(path) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False

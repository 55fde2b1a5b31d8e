"""Lists new files in shared folders, which replicas use if the system doesn't support private folders."""

import contextlib
import os
import re
from collections.abc import Iterator
from pathlib import Path

FOLDERS = ("/tmp", "/var/tmp", "/dev/shm")
OF_TOOLS = re.compile(r"\.|__|pip-|pytest-|replica-|sem\.|tmp|torch|vertex-")  # programs use their own TMPDIR
NAMED = 3  # the maximum number of files and folders to list


def note(began: float, caches: Path) -> str:
    """Return a sentence about files that were written to shared folders after the Unix time `began`.

    Return "" if no files were written.
    """
    names = sorted(name for folder in (*FOLDERS, str(caches)) for name in _written(folder, began))
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    who = "this job or another program wrote these files while the job was running"
    why = "This system doesn't support namespaces, so all replicas share these folders, unlike on Vertex AI"
    return f"{', '.join(names[:NAMED])}{more}: {who}. {why}" if names else ""


def _written(folder: str, began: float) -> Iterator[str]:
    with contextlib.suppress(OSError):  # the folder doesn't exist, or a file in it was deleted
        for entry in os.scandir(folder):
            status = entry.stat(follow_symlinks=False)
            if status.st_uid == os.getuid() and status.st_ctime >= began and not OF_TOOLS.match(entry.name):
                yield entry.path

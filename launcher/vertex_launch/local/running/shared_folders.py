"""Folders of this machine that all replicas write to where the system gives them none of their own."""

import contextlib
import os
import re
from collections.abc import Iterator
from pathlib import Path

FOLDERS = ("/tmp", "/var/tmp", "/dev/shm")
OF_TOOLS = re.compile(r"\.|__|pip-|pytest-|replica-|sem\.|tmp|torch|vertex-")  # programs find their own TMPDIR
NAMED = 3  # files and folders


def note(began: float, caches: Path) -> str:
    """Return a sentence on what was written there since `began`, in seconds since 1970; "" if nothing was."""
    names = sorted(name for folder in (*FOLDERS, str(caches)) for name in _written(folder, began))
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    who = "written while this job ran, by it or by another program"
    why = "This system permits no namespaces: replicas share these folders, but on Vertex AI each start has its own"
    return f"{', '.join(names[:NAMED])}{more}: {who}. {why}" if names else ""


def _written(folder: str, began: float) -> Iterator[str]:
    with contextlib.suppress(OSError):  # no such folder, or what was in it is gone
        for entry in os.scandir(folder):
            status = entry.stat(follow_symlinks=False)
            if status.st_uid == os.getuid() and status.st_ctime >= began and not OF_TOOLS.match(entry.name):
                yield entry.path

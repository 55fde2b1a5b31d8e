"""Creates and removes temporary folders for the files that a replica writes.

The folders are created, read, and removed outside the replica's mount namespace. Therefore, their removal can't affect
other files.
"""

import contextlib
import os
import shutil
import socket
import stat
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

DISK, MEMORY = Path("/var/tmp"), Path("/dev/shm")
PLACE, UPPER, WORK = "place", "upper", "work"  # in a layer: a link to the original folder, and two of the overlay
TRIALS = 50  # attempts to remove a folder, 0.1 s apart, because killed processes may still write to it for a moment


class Scratch:
    """The temporary folders of a replica, on disk and in memory, with a layer for each private folder.

    A separate process removes the temporary folders when this process exits or is killed. The
    separate process starts before the replica's mount namespace exists and never enters it.
    """

    def __init__(self) -> None:
        disk = DISK if os.access(DISK, os.W_OK) else None  # None selects TMPDIR
        parents = {DISK: disk, **({MEMORY: MEMORY} if os.access(MEMORY, os.W_OK) else {})}
        self._folders = {place: Path(tempfile.mkdtemp(None, "replica-", parent)) for place, parent in parents.items()}
        self._ours, theirs = socket.socketpair()
        child = os.fork()
        if child == 0:
            if os.fork() == 0:  # the process isn't our child, so it isn't killed with a replica's processes
                self._ours.close()
                _remove_at_end(theirs, [*self._folders.values()])
            os._exit(0)
        os.waitpid(child, 0)
        theirs.close()

    def close(self) -> None:
        """Remove the folders."""
        self._ours.shutdown(socket.SHUT_WR)
        self._ours.recv(1)  # returns when the other process exits

    def layer(self, place: Path) -> Path:
        """Create a layer for the files that a replica writes to a folder. Return the layer's path."""
        layer = Path(tempfile.mkdtemp(dir=self._folders[place if place in self._folders else DISK]))
        (layer / PLACE).symlink_to(place)
        (layer / WORK).mkdir()
        mask = os.umask(0)
        (layer / UPPER).mkdir(stat.S_IMODE(place.stat().st_mode) if place.exists() else 0o755)
        os.umask(mask)
        return layer

    def files(self) -> Iterator[Path]:
        """Yield the paths of the files that the replica wrote to its file system.

        Skip empty files, because tools often leave them behind.
        """
        for place, folder in self.layers():
            for parent, _, names in os.walk(folder):
                for path in (Path(parent, name) for name in names):
                    status = path.lstat()
                    if stat.S_ISREG(status.st_mode) and status.st_size:
                        yield place / path.relative_to(folder)

    def layers(self) -> Iterator[tuple[Path, Path]]:
        """Yield each private folder of the replica and the temporary folder that contains the files written to it."""
        for folder in self._folders.values():
            for layer in folder.iterdir():
                yield Path(os.readlink(layer / PLACE)), layer / UPPER


def _remove_at_end(other: socket.socket, folders: list[Path]) -> None:
    """Remove temporary folders when the other process exits or requests their removal."""
    os.setsid()
    null = os.open(os.devnull, os.O_RDWR)
    for stream in range(3):
        os.dup2(null, stream)  # the launcher waits until all writers have closed its pipes
    other.recv(1)
    for folder in folders:
        for _ in range(TRIALS):
            if _mounted_below(folder):
                break  # never expected; through a mount, the removal could reach other files
            shutil.rmtree(folder, ignore_errors=True)
            if not folder.exists():
                break
            time.sleep(0.1)


def _mounted_below(folder: Path) -> bool:
    with contextlib.suppress(OSError):  # only Linux has this file
        return f" {folder.resolve()}/" in Path("/proc/self/mountinfo").read_text(errors="replace")
    return False

"""Folders for what one start of a replica writes; they end with it.

They are made, read and removed where no mount of the replica's can be seen, so a removal can reach nothing else.
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
PLACE, UPPER, WORK = "place", "upper", "work"  # in a layer's folder: a link to its place, its files, the kernel's own
TRIALS = 50  # to remove a folder, 0.1 s after one another: processes that were just killed may write there


class Scratch:
    """The folders of one start, on disk and in memory, with a folder for each place whose files are the replica's own.

    A process of its own removes them when this process is gone, even if this one is killed. That process is made before
    the replica's mount namespace is, and never enters it.
    """

    def __init__(self) -> None:
        disk = DISK if os.access(DISK, os.W_OK) else None  # None: TMPDIR's
        parents = {DISK: disk, **({MEMORY: MEMORY} if os.access(MEMORY, os.W_OK) else {})}
        self._folders = {place: Path(tempfile.mkdtemp(None, "replica-", parent)) for place, parent in parents.items()}
        self._ours, theirs = socket.socketpair()
        child = os.fork()
        if child == 0:
            if os.fork() == 0:  # so that it's nobody's child, and nobody kills it with a replica's processes
                self._ours.close()
                _remove_at_end(theirs, [*self._folders.values()])
            os._exit(0)
        os.waitpid(child, 0)
        theirs.close()

    def close(self) -> None:
        """Remove the folders."""
        self._ours.shutdown(socket.SHUT_WR)
        self._ours.recv(1)  # returns when the other process ends

    def layer(self, place: Path) -> Path:
        """Make a folder for the files of a place; returns the one that holds it."""
        layer = Path(tempfile.mkdtemp(dir=self._folders[place if place in self._folders else DISK]))
        (layer / PLACE).symlink_to(place)
        (layer / WORK).mkdir()
        mask = os.umask(0)
        (layer / UPPER).mkdir(stat.S_IMODE(place.stat().st_mode) if place.exists() else 0o755)
        os.umask(mask)
        return layer

    def files(self) -> Iterator[Path]:
        """Yield the files that were written, by their names in the replica; not empty ones, which tools leave."""
        for place, folder in self.layers():
            for parent, _, names in os.walk(folder):
                for path in (Path(parent, name) for name in names):
                    status = path.lstat()
                    if stat.S_ISREG(status.st_mode) and status.st_size:
                        yield place / path.relative_to(folder)

    def layers(self) -> Iterator[tuple[Path, Path]]:
        """Yield places, and for each of them a folder with its files."""
        for folder in self._folders.values():
            for layer in folder.iterdir():
                yield Path(os.readlink(layer / PLACE)), layer / UPPER


def _remove_at_end(other: socket.socket, folders: list[Path]) -> None:
    """Remove folders once the other process is gone or asks for it."""
    os.setsid()
    null = os.open(os.devnull, os.O_RDWR)
    for stream in range(3):
        os.dup2(null, stream)  # the launcher waits for the ends of its pipes
    other.recv(1)
    for folder in folders:
        for _ in range(TRIALS):
            if _mounted_below(folder):
                break  # never so; a mount would lead the removal elsewhere
            shutil.rmtree(folder, ignore_errors=True)
            if not folder.exists():
                break
            time.sleep(0.1)


def _mounted_below(folder: Path) -> bool:
    with contextlib.suppress(OSError):  # only Linux has this file
        return f" {folder.resolve()}/" in Path("/proc/self/mountinfo").read_text(errors="replace")
    return False

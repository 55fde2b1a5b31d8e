"""Gives a replica a private, container-like file system, which is discarded when the replica exits.

The root of the replica's file system is a new folder. Each folder that the current user owns receives a layer, which is
an overlay that stores changes in the scratch folders. Other folders, which the current user can't change, are mounted
without a layer. Some folders can't have a layer but contain a folder that requires one. Such a folder is replaced by a
new folder with the same entries. Temporary folders such as /tmp are empty. Replicas share the launcher's folder, the
Python environment, the buckets at /gcs, and NFS mounts.
"""

import contextlib
import ctypes
import os
import re
import shutil
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path

from order import Order
from scratch import DISK, MEMORY, UPPER, WORK, Scratch

MS_BIND, MS_REC, MS_UNBINDABLE = 1 << 12, 1 << 14, 1 << 17  # Linux: mount(2)

KERNEL = tuple(map(Path, ("/proc", "/sys", "/dev")))
EMPTY = (Path("/tmp"), DISK, MEMORY)
LOG_STORAGE = Path("/var/log-storage")  # its output*.log files reach Cloud Logging. Source: Vertex AI, "Write logs"
# Sockets of name services, which don't work through an overlay.
SERVICES = ("/run/systemd", "/run/nscd", "/var/lib/sss/pipes")
SEARCHED, OWN = ("PATH", "PYTHONPATH", "LD_LIBRARY_PATH"), ("HOME", "XDG_CACHE_HOME")  # variables that contain folders

libc = ctypes.CDLL(None, use_errno=True)


class Layers:
    """The private file system of one replica. Its root is the `root` folder in the launcher's folder."""

    def __init__(self, scratch: Scratch, order: Order) -> None:
        self._scratch, self._state, self._layered = scratch, Path(order.state), order.layered
        self.root, self._cwd = self._state / "root", Path.cwd()
        as_they_are = filter(Path.exists, (self._state, *map(Path, (*SERVICES, *order.shared))))
        self._folders = {place.resolve(): place for place in as_they_are}
        self._folders |= {Path(place).resolve(): Path(folder) for place, folder in order.folders.items()}
        self._folders[LOG_STORAGE] = scratch.layer(LOG_STORAGE) / UPPER
        self._empty = {place.resolve() for place in EMPTY if place.is_dir()}
        words = (*order.needed, *(os.environ.get(name, "") for name in SEARCHED))
        self._needed = sorted({self._cwd, *filter(self._is_hidden, _paths(words))})
        self._links = sorted({*filter(self._is_hidden, _links((*words, *order.shared)))})
        self._mounted = sorted(mounted for mounted in _mounted() if not self._is_hidden(mounted))
        lead_to = (*self._empty, *map(Path, order.folders), LOG_STORAGE)
        if order.layered:
            lead_to += (*self._mounted, self._cwd)
        self._above = {parent for place in lead_to for parent in place.parents}
        self._layers: set[Path] = set()
        self.root.mkdir(exist_ok=True)

    def enter(self) -> None:
        """Create the replica's file system, and make this process enter it.

        Call this method only from a process in its own mount namespace.
        """
        top = Path("/")
        covered = _is_own(top) and self._cover(top)
        if not covered:
            self._bind(self._scratch.layer(top) / UPPER, top)
        mount("none", self.root, None, MS_UNBINDABLE)  # otherwise a bind of / would include the root itself
        (self._show_mounts if covered else self._show_entries)(top)
        for place in self._empty:
            self._bind(self._scratch.layer(place) / UPPER, place)
        for place in self._needed:
            if not self._has_layer(place) and not self._cover(place):
                self._bind(place, place)
        for link in self._links:
            self._at(link).parent.mkdir(parents=True, exist_ok=True)
            with contextlib.suppress(FileExistsError):  # in a folder that is visible
                self._at(link).symlink_to(os.readlink(link))
        if self._layered and not self._has_layer(self._cwd):
            raise OSError(0, "this system doesn't support an overlay on the working directory")
        for place, folder in self._folders.items():
            self._bind(folder, place)
        for place in _paths(os.environ.get(name, "") for name in OWN):
            if self._state in place.parents and not self._cover(place):
                self._bind(shutil.copytree(place, self._scratch.layer(place) / UPPER, dirs_exist_ok=True), place)
        os.chroot(self.root)
        os.chdir(self._cwd)

    def _show_mounts(self, folder: Path) -> None:
        """Remount the file systems inside a folder, because a layer over the folder hides them."""
        for mounted in self._mounted:
            if folder in mounted.parents and (mounted in KERNEL or not self._cover(mounted)):
                self._bind(mounted, mounted)

    def _show_entries(self, folder: Path) -> None:
        for entry in os.scandir(folder):
            with contextlib.suppress(OSError):  # the replica can't open the entry, either
                self._show(Path(entry.path))

    def _show(self, path: Path) -> None:
        """Make a path visible in the new root. If the path is a folder that supports a layer, add one."""
        if path in self._empty:
            return
        if path.is_symlink():
            self._at(path).symlink_to(os.readlink(path))
        elif path in KERNEL or not path.is_dir():
            self._bind(path, path)
        elif _is_own(path) and self._cover(path):
            self._show_mounts(path)
        elif path in self._above:
            self._at(path).mkdir(stat.S_IMODE(path.stat().st_mode))
            self._show_entries(path)
        else:
            self._bind(path, path)

    def _cover(self, place: Path) -> bool:
        """Make a folder visible through a layer. Return False if the system doesn't support the layer."""
        if self._layered:
            with contextlib.suppress(OSError):
                layer = self._scratch.layer(place)
                os.chdir(place)  # a path in the options would need escapes
                options = f"lowerdir=.,upperdir={layer / UPPER},workdir={layer / WORK},volatile,userxattr"
                self._at(place).mkdir(parents=True, exist_ok=True)
                mount("overlay", self._at(place), "overlay", options=options)
                self._layers.add(place)
                return True
        return False

    def _bind(self, source: Path, place: Path) -> None:
        target = self._at(place)
        if source.is_dir():
            target.mkdir(parents=True, exist_ok=True)
        elif not target.exists():
            target.touch()
        mount(str(source), target, None, MS_BIND | MS_REC)

    def _at(self, place: Path) -> Path:
        return self.root / place.relative_to("/")

    def _is_hidden(self, place: Path) -> bool:
        """Return whether a parent folder of this path was replaced by an empty folder."""
        return any(empty in place.parents for empty in self._empty)

    def _has_layer(self, place: Path) -> bool:
        above = (path for path in (place, *place.parents) if path in self._layers | self._empty)
        return next(above, None) in self._layers


def _is_own(folder: Path) -> bool:
    """Return whether the current user owns a folder. An overlay can't store changes to other users' folders."""
    return os.access(folder, os.W_OK) and os.getuid() in (0, folder.stat().st_uid)


def _mounted() -> Iterator[Path]:
    """Yield the mount points of this machine, excluding those inside kernel folders such as /proc."""
    for line in Path("/proc/self/mountinfo").read_text(errors="surrogateescape").splitlines():
        place = Path(re.sub(r"\\(\d{3})", lambda match: chr(int(match[1], 8)), line.split(" ")[4]))
        if not any(kernel in place.parents for kernel in KERNEL):
            yield place


def _paths(words: Iterable[str]) -> Iterator[Path]:
    """Yield all existing folders in search paths such as PATH."""
    return (path.resolve() for path in _unresolved(words))


def _links(words: Iterable[str]) -> Iterator[Path]:
    """Yield the symbolic links through which search paths lead to existing folders."""
    for path in _unresolved(words):
        while link := next(filter(Path.is_symlink, (*reversed(path.parents), path)), None):
            yield link
            path = Path(os.path.normpath(link.parent / os.readlink(link))) / path.relative_to(link)


def _unresolved(words: Iterable[str]) -> Iterator[Path]:
    paths = (Path(part) for word in words for part in word.split(os.pathsep))
    return (path for path in paths if path.is_absolute() and path.is_dir())


def mount(source: str, target: Path, kind: str | None, flags: int = 0, options: str = "") -> None:
    """Call mount(2)."""
    words = (os.fsencode(source), os.fsencode(target), kind.encode() if kind else None)
    check(libc.mount(*words, ctypes.c_ulong(flags), options.encode() or None), f"mount {target}")


def check(result: int, call: str) -> None:
    """Raise OSError if a libc call failed."""
    if result:
        number = ctypes.get_errno()
        raise OSError(number, f"{call}: {os.strerror(number)}")

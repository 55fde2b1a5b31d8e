"""Refuses below /gcs what Cloud Storage FUSE refuses, whichever program asks for it, by seccomp's user notification.

Renames, hard links and named pipes alone wait for an answer; all other system calls run at full speed.
Source: GoogleCloudPlatform/gcsfuse at 7b39292 (August 2026), internal/fs/fs.go and docs/semantics.md. The options of
Vertex AI's mount are not documented; gcsfuse's defaults are likely.
"""

import contextlib
import ctypes
import errno
import fcntl
import json
import os
import stat
import struct
import sys
from collections.abc import Sequence
from pathlib import Path

libc = ctypes.CDLL(None, use_errno=True)

# Linux: seccomp(2), seccomp_unotify(2), prctl(2), openat2(2)
SET_FILTER, NEW_LISTENER, NO_NEW_PRIVILEGES = 1, 1 << 3, 38
RECEIVE, SEND, CONTINUE = 0xC0502100, 0xC0182101, 1
ALLOW, NOTIFY = 0x7FFF0000, 0x7FC00000
LOAD, IF_EQUAL, RETURN = 0x20, 0x15, 0x06  # instructions of BPF
NOTICE, ANSWER = "=QIIiIQ6Q", "=QqiI"
OPENAT2, RESOLVE_IN_ROOT = 437, 0x10
CURRENT_FOLDER, LONGEST = -100, 4096

# System and machine -> its number, that of seccomp(2), and those of calls: what it does, whether folders precede paths.
MACHINES = {
    ("Linux", "x86_64"): (
        *(0xC000003E, 317),
        {82: ("rename", False), 264: ("rename", True), 316: ("rename", True)}
        | {86: ("link", False), 265: ("link", True), 133: ("mknod", False), 259: ("mknod", True)},
    ),
    ("Linux", "aarch64"): (
        *(0xC00000B7, 277),
        {38: ("rename", True), 276: ("rename", True), 37: ("link", True), 33: ("mknod", True)},
    ),
}

COMPLETE = "Write files under their final names, and then one that marks them complete"
FOLDER = (
    "{}: Cloud Storage FUSE can't rename a folder with files in a bucket without hierarchical namespace (likely on "
    f"Vertex AI: it is gcsfuse's default). {COMPLETE}"
)
LARGE = (
    "{}: Cloud Storage FUSE renames a folder with files on this machine type alone, file by file (likely on Vertex AI: "
    f"it is gcsfuse's default). {COMPLETE}"
)
LINK = "{}: Cloud Storage FUSE supports no hard links. Copy the file"
PIPE = "{}: Cloud Storage FUSE supports no named pipes. Make them in /tmp"
BUCKETS = "{}: Cloud Storage FUSE can't rename anything into another bucket. Copy it"
OPEN = (
    "{} was renamed while it was open for writing: Cloud Storage FUSE refuses what is written to it afterwards (Stale "
    "file handle). Close a file before you rename it"
)


class MountLimits:
    """Answers the calls of all processes that this one starts from now on, which must make none of them itself.

    `state` is the launcher's folder; `large` machines rename folders. Raises OSError or KeyError if this system has no
    such notifications.
    """

    def __init__(self, state: Path, large: bool) -> None:
        self._refused, self._doubtful = dict[str, None](), dict[str, None]()  # sentences, each once
        self._large, self._root, self._buckets = large, str(state / "root"), state / "gcs"
        machine, seccomp, self._calls = MACHINES[os.uname().sysname, os.uname().machine]
        self._listener = _listen(machine, seccomp, [*self._calls])

    def fileno(self) -> int:
        """Return the file descriptor at which calls arrive."""
        return self._listener

    def sentences(self, failed: bool) -> list[str]:
        """Return what to tell of the calls, of those that were refused only if the command has failed."""
        return [*(self._refused if failed else ()), *self._doubtful]

    def answer(self) -> None:
        """Let one call continue, or return an error in its place."""
        notice = bytearray(struct.calcsize(NOTICE))
        with contextlib.suppress(OSError):  # the caller is gone
            fcntl.ioctl(self._listener, RECEIVE, notice)
            number, process, _, call, _, _, *arguments = struct.unpack(NOTICE, notice)
            error = 0
            with contextlib.suppress(OSError, ValueError):  # a path that the call itself refuses
                error = self._error(process, *self._calls[call], arguments)
            fcntl.ioctl(self._listener, SEND, struct.pack(ANSWER, number, 0, -error, 0 if error else CONTINUE))

    def _error(self, process: int, kind: str, at: bool, arguments: list[int]) -> int:
        """Return the error number of a call, 0 for none."""
        words = arguments if at else [CURRENT_FOLDER, arguments[0], CURRENT_FOLDER, arguments[1]]
        name = self._object(process, *words[:2])
        if kind == "mknod":
            special = stat.S_ISFIFO(arguments[1 + at]) or stat.S_ISSOCK(arguments[1 + at])
            return self._refuse(errno.ENOTSUP, PIPE, name) if name and special else 0
        new_name = name and self._object(process, *words[2:4])
        if not new_name:
            return 0
        return self._refuse(errno.EPERM, LINK, name) if kind == "link" else self._rename(process, name, new_name)

    def _rename(self, process: int, name: str, new_name: str) -> int:
        if "/" not in name or name.split("/")[0] != new_name.split("/")[0]:
            return self._refuse(errno.ENOTSUP, BUCKETS, name)
        status = os.lstat(self._buckets / name)
        if stat.S_ISDIR(status.st_mode):
            return self._rename_folder(name)
        if _is_written(process, status):
            self._doubtful[OPEN.format(f"/gcs/{name}")] = None
        return 0

    def _rename_folder(self, name: str) -> int:
        if not os.listdir(self._buckets / name) or self._is_hierarchical(name.split("/")[0]):
            return 0
        if self._large:
            self._doubtful[LARGE.format(f"/gcs/{name}")] = None
            return 0
        return self._refuse(errno.EMFILE, FOLDER, name)

    def _refuse(self, error: int, sentence: str, name: str) -> int:
        self._refused[sentence.format(f"/gcs/{name}")] = None
        return error

    def _object(self, process: int, at: int, address: int) -> str:
        """Return BUCKET/NAME of a path in a bucket that a process names, otherwise ""."""
        head, name = os.path.split(_path(process, at, address, self._root))
        root = os.open(f"/proc/{process}/root", os.O_PATH)
        how = struct.pack("=QQQ", os.O_PATH | os.O_CLOEXEC, 0, RESOLVE_IN_ROOT)
        folder = libc.syscall(OPENAT2, root, os.fsencode(head), how, len(how))
        os.close(root)
        if folder < 0:
            return ""
        found = os.path.join(os.readlink(f"/proc/self/fd/{folder}").removeprefix(self._root), name)
        os.close(folder)
        places = (place for place in ("/gcs/", f"{self._buckets}/") if found.startswith(place))
        return next((found.removeprefix(place) for place in places), "")

    def _is_hierarchical(self, bucket: str) -> bool:
        with contextlib.suppress(FileNotFoundError), open(self._buckets / f".buckets/{bucket}.json") as metadata:
            return bool(json.load(metadata).get("hierarchicalNamespace", {}).get("enabled"))
        return False


def _listen(machine: int, seccomp: int, calls: Sequence[int]) -> int:
    """Have these calls notify us; returns where they arrive."""
    sys.dont_write_bytecode = True  # it ends with a rename
    count = len(calls)
    program = [(LOAD, 0, 0, 4), (IF_EQUAL, 0, count + 1, machine), (LOAD, 0, 0, 0)]  # other machines' calls: allow
    program += [(IF_EQUAL, count - index, 0, call) for index, call in enumerate(calls)]
    program += [(RETURN, 0, 0, ALLOW), (RETURN, 0, 0, NOTIFY)]
    code = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *words) for words in program))
    whole = ctypes.create_string_buffer(struct.pack("@HP", len(program), ctypes.addressof(code)))
    for _ in range(2):
        listener: int = libc.syscall(seccomp, SET_FILTER, NEW_LISTENER, whole)
        if listener >= 0:
            return listener
        libc.prctl(NO_NEW_PRIVILEGES, 1, 0, 0, 0)  # without root's rights, a filter needs this
    raise OSError(ctypes.get_errno(), "seccomp")


def _path(process: int, at: int, address: int, root: str) -> str:
    """Return the absolute path that a process names; its folders have paths below its root, as we see them."""
    memory = os.open(f"/proc/{process}/mem", os.O_RDONLY)
    try:
        path = os.fsdecode(os.pread(memory, LONGEST, address).partition(b"\0")[0]).rstrip("/")
    finally:
        os.close(memory)
    folder = "cwd" if ctypes.c_int(at).value == CURRENT_FOLDER else f"fd/{at}"
    base = "/" if path.startswith("/") else os.readlink(f"/proc/{process}/{folder}").removeprefix(root)
    return os.path.join(base, path)


def _is_written(process: int, status: os.stat_result) -> bool:
    """Whether a process has a file open for writing, which the modes of its links in /proc show."""
    for link in os.scandir(f"/proc/{process}/fd"):
        with contextlib.suppress(OSError):  # closed meanwhile
            if link.stat(follow_symlinks=False).st_mode & stat.S_IWUSR and os.path.samestat(os.stat(link.path), status):
                return True
    return False

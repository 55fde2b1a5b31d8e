"""Rejects the operations under /gcs that Cloud Storage FUSE also rejects.

The module uses seccomp user notifications, which work for all programs. Only renames and hard links wait for a
response. All other system calls run at full speed.
Source: GoogleCloudPlatform/gcsfuse at 7b39292 (August 2026), internal/fs/fs.go and docs/semantics.md.
The Vertex AI documentation doesn't specify mount options. Therefore, this module assumes the default options of
gcsfuse.
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

from layers import libc
from order import Order

# Linux: seccomp(2), seccomp_unotify(2), prctl(2), openat2(2)
SET_FILTER, NEW_LISTENER, NO_NEW_PRIVILEGES = 1, 1 << 3, 38
RECEIVE, SEND, CONTINUE = 0xC0502100, 0xC0182101, 1
ALLOW, NOTIFY = 0x7FFF0000, 0x7FC00000
LOAD, IF_EQUAL, RETURN = 0x20, 0x15, 0x06  # BPF instructions
NOTICE, ANSWER = "=QIIiIQ6Q", "=QqiI"
OPENAT2, RESOLVE_IN_ROOT = 437, 0x10
CURRENT_FOLDER, LONGEST = -100, 4096

# System and machine -> architecture number, number of seccomp(2), and numbers of the calls to check.
MACHINES = {
    "Linux x86_64": (0xC000003E, 317, {82: "rename", 264: "renameat", 316: "renameat2", 86: "link", 265: "linkat"}),
    "Linux aarch64": (0xC00000B7, 277, {38: "renameat", 276: "renameat2", 37: "linkat"}),
}

FUSE, DEFAULT = ": Cloud Storage FUSE", "the gcsfuse default, probably also on Vertex AI"
COMPLETE = "Write files under their final names, and then write a file that marks them as complete"
FOLDER = f"{FUSE} can't rename a nonempty folder in a bucket without a hierarchical namespace ({DEFAULT}). {COMPLETE}"
LARGE = f"{FUSE} renames nonempty folders only on this machine type, and only file by file ({DEFAULT}). {COMPLETE}"
LINK = f"{FUSE} doesn't support hard links. Copy the file instead"
BUCKETS = f"{FUSE} can't move files to another bucket. Copy the file instead"
OPEN = (
    f" was renamed while it was open for writing{FUSE} rejects later writes to this file (Stale file handle). "
    "Close a file before you rename it"
)


class MountLimits:
    """A handler for the rename and link system calls of all processes that this process starts later.

    This process must not rename files or create hard links itself. Raises OSError or KeyError if the system doesn't
    support notifications.
    """

    def __init__(self, order: Order) -> None:
        self._notes: dict[str, bool] = {}  # sentence -> whether it is about a rejected call
        self._large, self._root, self._buckets = order.large, f"{order.state}/root", Path(order.state, "gcs")
        machine, seccomp, self._calls = MACHINES[f"{os.uname().sysname} {os.uname().machine}"]
        self._listener = _listen(machine, seccomp, [*self._calls])

    def fileno(self) -> int:
        """Return the file descriptor on which notifications about system calls arrive."""
        return self._listener

    def sentences(self, failed: bool) -> list[str]:
        """Return the sentences about rename and link calls.

        If the command succeeded, omit the sentences about rejected calls.
        """
        return [sentence for sentence, refused in self._notes.items() if failed or not refused]

    def answer(self) -> None:
        """Let one system call continue, or make it return an error."""
        notice = bytearray(struct.calcsize(NOTICE))
        with contextlib.suppress(OSError):  # the calling process has ended
            fcntl.ioctl(self._listener, RECEIVE, notice)
            number, process, _, call, _, _, *arguments = struct.unpack(NOTICE, notice)
            error = 0
            with contextlib.suppress(OSError, ValueError, OverflowError):  # a path that the call itself rejects
                error = self._error(process, self._calls[call], arguments)
            fcntl.ioctl(self._listener, SEND, struct.pack(ANSWER, number, 0, -error, 0 if error else CONTINUE))

    def _error(self, process: int, call: str, arguments: list[int]) -> int:
        """Return the error number for a system call, or 0 if the call is permitted."""
        # In calls with "at" in the name, a folder precedes each path.
        words = arguments if "at" in call else [CURRENT_FOLDER, arguments[0], CURRENT_FOLDER, arguments[1]]
        name, new_name = self._object(process, *words[:2]), self._object(process, *words[2:4])
        if not name or not new_name:
            return 0
        if call.startswith("link"):
            return self._note(LINK, name, errno.EPERM)
        if "/" not in name or name.split("/")[0] != new_name.split("/")[0]:
            return self._note(BUCKETS, name, errno.ENOTSUP)
        status = os.lstat(self._buckets / name)
        if stat.S_ISDIR(status.st_mode):
            return self._rename_folder(name)
        return self._note(OPEN, name) if _is_written(process, status) else 0

    def _rename_folder(self, name: str) -> int:
        if not os.listdir(self._buckets / name) or self._is_hierarchical(name.split("/")[0]):
            return 0
        return self._note(LARGE, name) if self._large else self._note(FOLDER, name, errno.EMFILE)

    def _note(self, sentence: str, name: str, error: int = 0) -> int:
        self._notes[f"/gcs/{name}{sentence}"] = error != 0
        return error

    def _object(self, process: int, at: int, address: int) -> str:
        """Return BUCKET/NAME for a process's path, or "" if the path isn't in a bucket."""
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
    """Request notifications about these system calls, and return the file descriptor that receives them."""
    sys.dont_write_bytecode = True  # writing bytecode includes a rename
    count = len(calls)
    program = [(LOAD, 0, 0, 4), (IF_EQUAL, 0, count + 1, machine), (LOAD, 0, 0, 0)]  # allow other architectures
    program += [(IF_EQUAL, count - index, 0, call) for index, call in enumerate(calls)]
    program += [(RETURN, 0, 0, ALLOW), (RETURN, 0, 0, NOTIFY)]
    code = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *words) for words in program))
    whole = ctypes.create_string_buffer(struct.pack("@HP", len(program), ctypes.addressof(code)))
    for _ in range(2):
        listener: int = libc.syscall(seccomp, SET_FILTER, NEW_LISTENER, whole)
        if listener >= 0:
            return listener
        libc.prctl(NO_NEW_PRIVILEGES, 1, 0, 0, 0)  # without root privileges, a filter requires this
    raise OSError(ctypes.get_errno(), "seccomp")


def _path(process: int, at: int, address: int, root: str) -> str:
    """Return the path that a process passes to a system call, as an absolute path in the process's root directory."""
    with open(f"/proc/{process}/mem", "rb", buffering=0) as memory:
        memory.seek(address)
        path = os.fsdecode(memory.read(LONGEST).partition(b"\0")[0]).rstrip("/")
    folder = "cwd" if ctypes.c_int(at).value == CURRENT_FOLDER else f"fd/{at}"
    base = "/" if path.startswith("/") else os.readlink(f"/proc/{process}/{folder}").removeprefix(root)
    return os.path.join(base, path)


def _is_written(process: int, status: os.stat_result) -> bool:
    """Return whether the permissions of a process's links in /proc show that it has a file open for writing."""
    for link in os.scandir(f"/proc/{process}/fd"):
        with contextlib.suppress(OSError):  # closed in the meantime
            if link.stat(follow_symlinks=False).st_mode & stat.S_IWUSR and os.path.samestat(os.stat(link.path), status):
                return True
    return False

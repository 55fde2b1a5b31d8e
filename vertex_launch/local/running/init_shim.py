"""Runs the command of one replica in isolation, passes orders on to it, and leaves no process of it behind.

    python init_shim.py '{"world": "none|root|user|container", ...}' COMMAND [ARGUMENT ...]

With `root`, or with `user` where Linux permits that without root's rights, the command is process 1 of a PID
namespace, as in a container: it ignores SIGTERM unless it handles it, and everything that it started ends with it.
With "hosts", a file, it has a host name of its own, its variable HOSTNAME, and finds the file at /etc/hosts. With
"folders", such as {"/gcs": FOLDER}, it finds these at their places; its own root is then mounted on "root", an empty
folder. With "state", the launcher's folder, what it writes elsewhere in the working directory is gone with it, and
LOG_STORAGE takes log files. With `container` the command is `CLIENT run --name=NAME ...`.

Standard input brings signals, a byte with the number of each, and terminals, a byte 0 and a line with the path of each:
a shell starts there, with what the command sees. The input's end means that the launcher is gone. Then, as after the
command's own end, everything that the command started is killed, shells too; on Linux, detached processes too.
"""

import contextlib
import ctypes
import fcntl
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import termios
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

# Linux: prctl(2), unshare(2), mount(2)
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
CLONE_NEWNS, CLONE_NEWUTS, CLONE_NEWUSER, CLONE_NEWPID = 1 << 17, 1 << 26, 1 << 28, 1 << 29
MS_BIND, MS_REC, MS_UNBINDABLE, MS_PRIVATE = 1 << 12, 1 << 14, 1 << 17, 1 << 18

Folders = Mapping[str, str]  # a place -> the folder to see there

NONE: Folders = {}
NAMESPACES = ("root", "user")
SCRATCH = Path("/var/tmp")  # on a disk, where /tmp may be memory
LOG_STORAGE = "/var/log-storage"  # output*.log in it reaches Cloud Logging. Source: Vertex AI, "Write logs"
NAMED = 3  # files
SHELL = ("sh", "-c", "command -v bash >/dev/null && exec bash; exec sh")
ENV = os.environ | {"TERM": "dumb"}  # the page of a shell shows letters and lines

libc = ctypes.CDLL(None, use_errno=True)


def main(command: list[str], world: str, hosts: str, root: str = "", folders: Folders = NONE, state: str = "") -> int:
    """Run the command; returns its exit code, 128 + N for a signal N, as containers report it."""
    with contextlib.suppress(AttributeError):  # only on Linux: orphans among our descendants become our children
        libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    with _scratch() if state else contextlib.nullcontext() as scratch:
        try:
            if world in NAMESPACES:
                _separate(as_user=world == "user")
                if scratch:
                    _layer(scratch, state, as_user=world == "user")
                if root:
                    logs = {LOG_STORAGE: f"{scratch}/logs"} if scratch else {}
                    _enter_root(Path(root), {**folders, **logs})
                _become_host(hosts)
            code = _run(command, _see_own_processes if world in NAMESPACES else _end_with_us)
        except OSError as error:
            print(f"{command[0]}: cannot be started: {error.strerror}", file=sys.stderr, flush=True)
            return 127
        if scratch:
            _tell_of(scratch)
    if world == "container":
        _remove_container(command)
    return 128 - code if code < 0 else code


def _run(command: list[str], set_up: Callable[[], None]) -> int:
    # In a session of its own, as in a container: `kill 0` in a shell script must not reach us.
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True, preexec_fn=set_up)
    code = _attend(process, set_up)
    _end_what_is_left(process.pid)
    return code


def _attend(process: "subprocess.Popen[bytes]", set_up: Callable[[], None]) -> int:
    """Do what the launcher orders until the command has ended; without threads, because `_separate` permits none."""
    ended, write = os.pipe()
    os.set_blocking(write, False)
    signal.set_wakeup_fd(write)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    inputs, shells = [0, ended], list[subprocess.Popen[bytes]]()
    while (code := process.poll()) is None:
        readable, _, _ = select.select(inputs, [], [])
        if 0 in readable:
            byte = os.read(0, 1)
            if not byte:  # the launcher is gone
                inputs.remove(0)
                process.kill()
            elif byte[0]:
                _pass_on(byte[0], process.pid)
            else:
                shells += _opened(b"".join(iter(lambda: os.read(0, 1), b"\n")), set_up)
        if ended in readable:
            os.read(ended, 1)
            for shell in shells:  # process 1 of a namespace ends once nobody else is left there, not even a zombie
                shell.poll()
    return code


def _opened(terminal: bytes, set_up: Callable[[], None]) -> Iterator["subprocess.Popen[bytes]"]:
    """Start a shell at a terminal, whose end hangs it up; nothing starts where the terminal is gone already."""

    def attach() -> None:
        set_up()
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)

    with contextlib.suppress(OSError, subprocess.SubprocessError):
        end = os.open(terminal, os.O_RDWR | os.O_NOCTTY)
        yield subprocess.Popen(SHELL, 0, None, end, end, end, attach, env=ENV, start_new_session=True)
        os.close(end)


def _separate(as_user: bool) -> None:
    """See mounts and a host name of our own, and put every process started after this call into a new PID namespace."""
    user, group = os.getuid(), os.getgid()
    _check(libc.unshare(CLONE_NEWPID | CLONE_NEWNS | CLONE_NEWUTS | (CLONE_NEWUSER if as_user else 0)), "unshare")
    if as_user:
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
        Path("/proc/self/gid_map").write_text(f"{group} {group} 1")
    _mount("none", "/", None, MS_REC | MS_PRIVATE)


def _end_with_us() -> None:
    with contextlib.suppress(AttributeError):  # only on Linux: the command ends even if somebody kills us
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def _see_own_processes() -> None:
    """Have the PID namespace in /proc, which only its own processes can mount."""
    _end_with_us()
    _check(libc.unshare(CLONE_NEWNS), "unshare")
    _mount("proc", "/proc", "proc")


def _become_host(hosts: str) -> None:
    """Take a host name of our own, which the file of hosts resolves."""
    if hosts:
        name = os.environ["HOSTNAME"].encode()
        _check(libc.sethostname(name, len(name)), "sethostname")
        _mount(hosts, "/etc/hosts", None, MS_BIND)


@contextlib.contextmanager
def _scratch() -> Iterator[Path]:
    """A folder for what ends with the command, with those for log files, files written, and the kernel's work."""
    with tempfile.TemporaryDirectory(dir=SCRATCH, prefix="replica-", ignore_cleanup_errors=True) as folder:
        for name in ("logs", "written", "work"):
            os.mkdir(f"{folder}/{name}")
        yield Path(folder)


def _layer(scratch: Path, state: str, as_user: bool) -> None:
    """Let what is written into the working directory go to `scratch`, except into `state` and hidden folders.

    These are tools', such as .venv, whose compiled modules are to stay.
    """
    cwd = os.getcwd()
    paths = [entry.path for entry in os.scandir(cwd) if entry.name.startswith(".") and entry.is_dir()]
    paths += [state] if Path(state).is_relative_to(cwd) else []
    kept = {path: os.open(path, os.O_PATH | os.O_CLOEXEC) for path in paths}
    options = f"lowerdir=.,upperdir={scratch}/written,workdir={scratch}/work{',userxattr' if as_user else ''}"
    _mount("overlay", cwd, "overlay", options=options)
    os.chdir(cwd)
    for path, folder in kept.items():
        _mount(f"/proc/self/fd/{folder}", path, None, MS_BIND | MS_REC)
        os.close(folder)


def _tell_of(scratch: Path) -> None:
    """Print the log files that the command wrote to LOG_STORAGE, and the names of files that end with it."""
    for log in sorted(filter(Path.is_file, scratch.glob("logs/output*.log"))):
        with log.open(errors="replace") as lines:
            sys.stdout.writelines(lines)
    sys.stdout.flush()
    written = scratch / "written"
    files = [str(path.relative_to(written)) for path in sorted(written.rglob("*")) if path.is_file()]
    if names := [name for name in files if not name.endswith(".pyc")]:
        more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
        print(
            f"{', '.join(names[:NAMED])}{more} in the working directory ended with this replica, as in a container; "
            "write below /gcs or to AIP_MODEL_DIR what is to stay",
            flush=True,
        )


def _enter_root(root: Path, folders: Folders) -> None:
    """Enter a new root: a folder in memory with everything that / has, and the folders at their places."""
    cwd = os.getcwd()
    _mount("tmpfs", root, "tmpfs")
    _mount("none", root, None, MS_UNBINDABLE)  # else it would be bound into itself below, because it lies below /
    _show(Path("/"), root, [Path(place) for place in folders])
    for place, folder in folders.items():
        (root / place[1:]).mkdir(parents=True)
        _mount(folder, root / place[1:], None, MS_BIND | MS_REC)
    os.chroot(root)
    os.chdir(cwd)


def _show(source: Path, target: Path, places: list[Path]) -> None:
    """Show in one folder all that another holds, but nothing at these places, and of folders above them the content."""
    for entry in os.scandir(source):
        path, shown = Path(entry.path), target / entry.name
        if path in places:
            continue
        if any(path in place.parents for place in places):
            shown.mkdir()
            _show(path, shown, places)
        elif entry.is_symlink():
            shown.symlink_to(os.readlink(path))
        elif entry.is_dir():
            shown.mkdir()
            _mount(entry.path, shown, None, MS_BIND | MS_REC)
        elif entry.is_file():
            shown.touch()
            _mount(entry.path, shown, None, MS_BIND)


def _mount(source: str, target: str | Path, kind: str | None, flags: int = 0, options: str = "") -> None:
    words = (source.encode(), os.fsencode(target), kind.encode() if kind else None)
    _check(libc.mount(*words, ctypes.c_ulong(flags), options.encode() or None), f"mount {target}")


def _check(result: int, call: str) -> None:
    if result:
        number = ctypes.get_errno()
        raise OSError(number, f"{call}: {os.strerror(number)}")


def _pass_on(number: int, command: int) -> None:
    """Signal the command alone, which may pass it on, with SIGTERM and SIGKILL; all descendants with any other."""
    if number in (signal.SIGTERM, signal.SIGKILL):
        _signal(command, number)
        return
    for _ in range(2):  # the second round finds processes that started during the first
        for process in _descendants(os.getpid()):
            _signal(process, number)


def _signal(process: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(process, number)


def _end_what_is_left(command: int) -> None:
    """Kill the command's session, then our children; the orphans that they leave become our children and are next."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(command, signal.SIGKILL)
    while children := _children(os.getpid()):
        for child in children:
            with contextlib.suppress(ProcessLookupError, ChildProcessError):
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)


def _remove_container(command: list[str]) -> None:
    """Remove the container of a client, which leaves it behind if it was killed."""
    name = next(word.partition("=")[2] for word in command if word.startswith("--name="))
    quiet = subprocess.DEVNULL
    for _ in range(2):  # a client that is killed while it starts a container may leave one a moment later
        # In a session of its own: it goes on where this process is killed.
        removal = (command[0], "rm", "--force", name)
        subprocess.Popen(removal, stdin=quiet, stdout=quiet, stderr=quiet, start_new_session=True).wait()


def _descendants(process: int) -> Iterator[int]:
    for child in _children(process):
        yield child
        yield from _descendants(child)


def _children(process: int) -> list[int]:
    children: list[int] = []
    for path in Path(f"/proc/{process}/task").glob("*/children"):
        with contextlib.suppress(OSError):  # a thread that has just ended
            children += map(int, path.read_text().split())
    return children


if __name__ == "__main__":
    sys.exit(main(sys.argv[2:], **json.loads(sys.argv[1])))

"""Runs the command of one replica in isolation, follows the launcher's orders, and kills all remaining processes.

    python -I -S shim '{"world": "none|root|user|container", ...}' COMMAND [ARGUMENT ...]

If `world` is `root`, the command is PID 1 of a PID namespace, as in a container. This also applies to `user` if the
Linux system lets unprivileged users create namespaces. As PID 1, the command ignores SIGTERM unless it has a SIGTERM
handler. When the command exits, all its descendants are killed. If `world` is `container`, the command is
`CLIENT run --name=NAME ...`. order.py documents the other keys.

Orders arrive on standard input. A nonzero byte is the number of a signal to send. A zero byte, followed by a line with
a terminal's path, starts a shell on that terminal in the command's environment. The end of the input means that the
launcher has exited. When the launcher or the command exits, the shim kills all processes that the command started,
including shells. On Linux, the shim also kills detached processes.

The shim creates and removes the command's private folders. Only the command and its shells enter the command's mount
namespace.
"""

import contextlib
import fcntl
import json
import os
import select
import signal
import subprocess
import sys
import termios
from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain
from pathlib import Path

import left_files
from layers import LOG_STORAGE, MS_BIND, MS_REC, Layers, check, libc, mount
from mount_limits import MountLimits
from order import Order
from scratch import UPPER, Scratch

# Linux: prctl(2), unshare(2), mount(2)
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
CLONE_NEWNS, CLONE_NEWUTS, CLONE_NEWIPC = 1 << 17, 1 << 26, 1 << 27
CLONE_NEWUSER, CLONE_NEWPID = 1 << 28, 1 << 29
MS_PRIVATE = 1 << 18

NAMESPACES = ("root", "user")
SHELL = ("sh", "-c", "command -v bash >/dev/null && exec bash; exec sh")
ENV = os.environ | {"TERM": "dumb"}  # the web page of a shell shows only plain text


def main(command: list[str], order: Order) -> int:
    """Run the command, and return its exit code, or 128 + N if signal N killed it, as in a container."""
    own = limits = scratch = None
    try:
        if order.world == "user":
            _become_user()
        if order.state:
            scratch = Scratch()
            if order.folders:
                own = Layers(scratch, order)
            else:
                _lead_elsewhere(scratch, Path(order.state))
            with contextlib.suppress(OSError, KeyError):  # this system doesn't support notifications
                limits = MountLimits(order)
        with contextlib.suppress(AttributeError):  # only on Linux: orphaned descendants become our children
            libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        _separate(order)
        code = _run(command, order, own, limits)
        if scratch:
            _report(scratch, order, limits, failed=code != 0)
        return code
    except OSError as error:
        return _refuse(command, error)
    finally:
        if scratch:
            scratch.close()


def _refuse(command: list[str], error: OSError) -> int:
    print(f"{command[0]}: can't be started: {error.strerror}", file=sys.stderr, flush=True)
    return 127


def _run(command: list[str], order: Order, own: Layers | None, limits: MountLimits | None) -> int:
    def set_up() -> None:
        """Set up the command's process.

        Only PID 1 of a PID namespace can mount the namespace's /proc file system.
        """
        _end_with_us()
        if order.world in NAMESPACES:
            try:
                check(libc.unshare(CLONE_NEWNS), "unshare")
                mount("none", Path("/"), None, MS_REC | MS_PRIVATE)  # so that the mounts stay invisible outside
                if own:
                    own.enter()
                if order.hosts:
                    mount(order.hosts, Path("/etc/hosts"), None, MS_BIND)
                mount("proc", Path("/proc"), "proc")
            except OSError as error:
                os._exit(_refuse(command, error))

    # The command gets its own session, as in a container, because `kill 0` in a script must not kill this process.
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True, preexec_fn=set_up)
    join = partial(_join, process.pid, own) if order.world in NAMESPACES else _end_with_us
    code = _attend(process, join, limits)
    _end_what_is_left(process.pid)
    if order.world == "container":
        _remove_container(command)
    return 128 - code if code < 0 else code


def _attend(process: "subprocess.Popen[bytes]", join: Callable[[], None], limits: MountLimits | None) -> int:
    """Follow the launcher's orders until the command exits, and return its exit code.

    This function doesn't use threads, because a process can't start threads after it calls `_separate`.
    """
    ended, write = os.pipe()
    os.set_blocking(write, False)
    signal.set_wakeup_fd(write)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    inputs: list[int | MountLimits] = [0, ended, *([limits] if limits else [])]
    shells = list[subprocess.Popen[bytes]]()
    while (code := process.poll()) is None:
        readable, _, _ = select.select(inputs, [], [])
        if limits and limits in readable:
            limits.answer()
        if 0 in readable:
            byte = os.read(0, 1)
            if not byte:  # the launcher has exited
                inputs.remove(0)
                process.kill()
            elif byte[0]:
                _pass_on(byte[0], process.pid)
            else:
                shells += _opened(b"".join(iter(lambda: os.read(0, 1), b"\n")), join)
        if ended in readable:
            os.read(ended, 1)
            for shell in shells:  # PID 1 of a namespace can't exit while the namespace contains a zombie
                shell.poll()
    return code


def _opened(terminal: bytes, join: Callable[[], None]) -> Iterator["subprocess.Popen[bytes]"]:
    """Start a shell and connect it to a terminal, unless the terminal is already closed.

    Closing the terminal ends the shell.
    """

    def attach() -> None:
        join()
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)

    with contextlib.suppress(OSError, subprocess.SubprocessError):
        end = os.open(terminal, os.O_RDWR | os.O_NOCTTY)
        yield subprocess.Popen(SHELL, 0, None, end, end, end, attach, env=ENV, start_new_session=True)
        os.close(end)


def _become_user() -> None:
    """Acquire root privileges in a user namespace without changing the user ID."""
    user, group = os.getuid(), os.getgid()
    check(libc.unshare(CLONE_NEWUSER), "unshare")
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
    Path("/proc/self/gid_map").write_text(f"{group} {group} 1")


def _separate(order: Order) -> None:
    """Put later child processes in a new PID namespace. Give this process its own hostname and shared memory."""
    if order.world in NAMESPACES:
        check(libc.unshare(CLONE_NEWPID | CLONE_NEWUTS | CLONE_NEWIPC), "unshare")
    if order.hosts:
        name = os.environ["HOSTNAME"].encode()
        check(libc.sethostname(name, len(name)), "sethostname")


def _end_with_us() -> None:
    with contextlib.suppress(AttributeError):  # only on Linux: the command ends even if this process is killed
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def _join(command: int, own: Layers | None) -> None:
    """Move a shell's process into the command's mount namespace."""
    _end_with_us()
    folder, namespace = os.getcwd(), os.open(f"/proc/{command}/ns/mnt", os.O_RDONLY)
    check(libc.setns(namespace, CLONE_NEWNS), "setns")
    if own:
        os.chroot(own.root)
    os.chdir(folder)


def _lead_elsewhere(scratch: Scratch, state: Path) -> None:
    """Set HOME and TMPDIR to private folders, unless the job sets these variables."""
    for name, place in (("HOME", os.environ.get("HOME", "/")), ("TMPDIR", "/tmp")):
        if Path(os.environ.get(name, state)).is_relative_to(state):
            os.environ[name] = str(scratch.layer(Path(place)) / UPPER)


def _report(scratch: Scratch, order: Order, limits: MountLimits | None, failed: bool) -> None:
    """Print the log files in LOG_STORAGE and a line about discarded files. Write notes about the job to a file."""
    logs = (folder.glob("output*.log") for place, folder in scratch.layers() if place == LOG_STORAGE)
    for log in sorted(chain.from_iterable(logs)):
        if log.is_file():
            print(log.read_text(errors="replace"), end="", flush=True)
    files, cwd = [*scratch.files()], Path.cwd()
    if not order.layered:
        files += filter(Path.is_file, (cwd / left_files.SCHEME).rglob("*"))
    print(left_files.discarded(files, cwd, Path(ENV.get("HOME", "/root"))), end="", flush=True)
    sentences = [left_files.in_scheme(files), *(limits.sentences(failed) if limits else ())]
    if told := [f"{sentence}\n" for sentence in sentences if sentence]:
        with open(order.notes, "a") as notes:
            notes.writelines(told)


def _pass_on(number: int, command: int) -> None:
    """Send SIGTERM or SIGKILL only to the command. Send any other signal to all descendants of this process."""
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
    """Kill the command's session, and then kill all child processes of this process, including adopted orphans."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(command, signal.SIGKILL)
    while children := _children(os.getpid()):
        for child in children:
            with contextlib.suppress(ProcessLookupError, ChildProcessError):
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)


def _remove_container(command: list[str]) -> None:
    """Remove the container, which remains if its client was killed."""
    name = next(word.partition("=")[2] for word in command if word.startswith("--name="))
    quiet = subprocess.DEVNULL
    for _ in range(2):  # a client that was killed during a start may still create its container a moment later
        # The removal has its own session, so it continues if this process is killed.
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
    sys.exit(main(sys.argv[2:], Order(**json.loads(sys.argv[1]))))

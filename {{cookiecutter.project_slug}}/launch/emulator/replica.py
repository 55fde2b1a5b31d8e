"""One replica: runs a command and does not outlive the launcher.

    python replica.py COMMAND [ARGUMENT ...]

Standard input is the lifeline: it ends when the launcher does, however that happens. Then, as after the
command's own end, all that the command has started is killed, on Linux also what was detached. Inside a
PID namespace this program is process 1, as in a container.
"""

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

PR_SET_CHILD_SUBREAPER = 36  # prctl(2): orphans among our descendants become our children


def main(command: list[str]) -> int:
    """The command's exit code; a signal's number plus 128 if one ended it, as containers report it."""
    # A handler, not SIG_IGN: the command must not inherit it. The command gets the signal itself.
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: None)
    with contextlib.suppress(AttributeError):  # only Linux has it
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    try:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL)
    except OSError as error:
        print(f"{command[0]}: cannot be started: {error.strerror}", flush=True)
        return 127
    threading.Thread(target=_die_with_the_launcher, daemon=True).start()
    code = process.wait()
    _end_descendants()
    return 128 - code if code < 0 else code


def _die_with_the_launcher() -> None:
    os.read(0, 1)
    _end_descendants()
    os.killpg(0, signal.SIGKILL)
    os._exit(128 + signal.SIGKILL)  # process 1 of a namespace is spared by its own signals


def _end_descendants() -> None:
    """Kill our children; what they leave behind becomes our child and is next."""
    while children := _children():
        for child in children:
            with contextlib.suppress(ProcessLookupError, ChildProcessError):
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)


def _children() -> list[int]:
    try:
        lists = [path.read_text() for path in Path("/proc/self/task").glob("*/children")]
    except OSError:
        return []
    return [int(word) for words in lists for word in words.split()]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

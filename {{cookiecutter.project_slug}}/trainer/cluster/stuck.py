"""Determines where in the code a training process hangs.

When a training process receives a signal, it writes its Python stack to an in-memory file, which the parent process
reads. A healthy run isn't monitored. Python's faulthandler module writes the stack even if C code holds the global
interpreter lock. The functions in this file work only on Linux.
"""

import contextlib
import faulthandler
import os
import re
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

from trainer.vertex.log import say

# A real-time signal, because the trainer and users' programs use SIGUSR1 and SIGUSR2 for other purposes.
ASK = signal.SIGRTMIN + 5 if sys.platform == "linux" else 0
RECORD, WIDTH = "training-record", 12  # the memory file: the finished steps in WIDTH bytes, then the stack
ANSWER_SECONDS = 1.0
PROJECT = Path(__file__).parents[2]
# A stack frame of code outside libraries. The first match in a thread is the innermost frame.
OWN = re.compile(r'  File "(?!<|.*/lib/python3[^/]*/(?!site-packages/trainer/))(.+)", line (\d+) in (\S+)')
# Paths of libraries in which a thread waits for other processes, or for other threads of its own process.
PEERS = re.compile(r"/\w+/(distributed|autograd|python/eager)/")
THREADS = re.compile(r"/(threading|queue)\.py|/concurrent/futures/|/grain/")


@cache
def record() -> int:
    """Return the file descriptor of this process's record. If the operating system isn't Linux, return -1.

    After the first call, the process responds to the `ASK` signal by writing its stack.
    """
    if sys.platform != "linux":
        return -1
    os.write(file := os.memfd_create(RECORD), b" " * WIDTH)
    faulthandler.register(ASK, file)
    return file


def took(step: int) -> None:
    """Record the number of finished steps. The record's modification time is the time of the last step."""
    if (file := record()) >= 0:
        os.pwrite(file, str(step).encode().rjust(WIDTH), 0)


def ask(replica: str) -> str:
    """Print the Python stack of the first child process that hangs.

    The return value begins with the number of steps that the child has finished, in WIDTH characters. The number is
    followed by text such as `decode (trainer/data.py:71): no progress for 41 s, since step 30`. If all child processes
    are waiting for other replicas, return an empty string.
    """
    records = [*_asked()]
    time.sleep(ANSWER_SECONDS)
    for file, seconds in records:
        with contextlib.suppress(OSError):  # the child has exited
            text = file.read_text(errors="replace")
            step, threads = text[:WIDTH], [each for each in text[WIDTH:].split("\n\n") if OWN.search(each)]
            if where := place(threads):
                since = f", since step {step.strip()}" if step.strip() else ""
                told = f"{where}: no progress for {seconds:.0f} s{since}"
                say(f"{replica} is stuck in {told}; its stack:\n" + "\n\n".join(threads), "ERROR")
                return step + told
    return ""


def _asked() -> Iterator[tuple[Path, float]]:
    """Send the `ASK` signal to each child process.

    Yield each child's record and the number of seconds since its last finished step.
    """
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # the process has exited, or belongs to another user
            if int((process / "stat").read_text().rpartition(")")[2].split()[1]) == os.getpid():
                for file in (process / "fd").iterdir():
                    if RECORD in os.readlink(file):
                        yield file, time.time() - file.stat().st_mtime
                        os.kill(int(process.name), ASK)


def place(threads: Sequence[str]) -> str:
    """Return where in the code a process hangs. If the process is waiting for its peers, return an empty string.

    If the main thread is waiting for another thread, return where in the code that thread hangs.

    Args:
        threads: the stacks of the process's threads. The main thread's stack is the last item.
    """
    own = [(frame, thread[: frame.start()]) for thread in reversed(threads) if (frame := OWN.search(thread))]
    if not own or PEERS.search(own[0][1]):
        return ""
    hangs = [frame for frame, inner in own if not PEERS.search(inner) and not THREADS.search(inner)]
    if not hangs and any(PEERS.search(inner) for _, inner in own):
        return ""
    file, line, function = (hangs or [own[0][0]])[0].groups()
    return f"{function} ({os.path.relpath(file, PROJECT)}:{line})"

"""Find where a training process hangs: asked by a signal, it writes its stack to a file in memory for its parent.

Nothing watches a run that goes well, and faulthandler answers even if C code holds Python's lock. Linux only.
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

# A real-time signal: SIGUSR1 and SIGUSR2 have other uses here, and in programs of users.
ASK = signal.SIGRTMIN + 5 if sys.platform == "linux" else 0
RECORD, WIDTH = "training-record", 12  # the file: finished steps, in this many bytes, then the stack
ANSWER_SECONDS = 1.0
PROJECT = Path(__file__).parents[2]
# A frame of code that is in no library: the first of a thread is the innermost.
OWN = re.compile(r'  File "(?!<|.*/lib/python3[^/]*/(?!site-packages/trainer/))(.+)", line (\d+) in (\S+)')
# Libraries in which a thread waits for other processes, and for other threads of its own process.
PEERS = re.compile(r"/\w+/(distributed|autograd|python/eager)/")
THREADS = re.compile(r"/(threading|queue)\.py|/concurrent/futures/|/grain/")


@cache
def record() -> int:
    """Return the descriptor of this process's record, -1 without one; from the first call on the process answers."""
    if sys.platform != "linux":
        return -1
    os.write(file := os.memfd_create(RECORD), b" " * WIDTH)
    faulthandler.register(ASK, file)
    return file


def took(step: int) -> None:
    """Record how many steps are finished, and when."""
    if (file := record()) >= 0:
        os.pwrite(file, str(step).encode().rjust(WIDTH), 0)


def ask(replica: str) -> str:
    """Print the stack of this process's first child that hangs.

    Returns its finished steps, in WIDTH characters, and `decode (trainer/data.py:71): no progress for 41 s, since step
    30`; empty if all children wait for others.
    """
    records = [*_asked()]
    time.sleep(ANSWER_SECONDS)
    for file, seconds in records:
        with contextlib.suppress(OSError):  # it has ended
            text = file.read_text(errors="replace")
            step, threads = text[:WIDTH], [each for each in text[WIDTH:].split("\n\n") if OWN.search(each)]
            if where := place(threads):
                since = f", since step {step.strip()}" if step.strip() else ""
                told = f"{where}: no progress for {seconds:.0f} s{since}"
                say(f"{replica} is stuck in {told}; its stack:\n" + "\n\n".join(threads), "ERROR")
                return step + told
    return ""


def _asked() -> Iterator[tuple[Path, float]]:
    """Ask each child; yields its record, and the seconds since it finished a step."""
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended, or is another user's
            if int((process / "stat").read_text().rpartition(")")[2].split()[1]) == os.getpid():
                for file in (process / "fd").iterdir():
                    if RECORD in os.readlink(file):
                        yield file, time.time() - file.stat().st_mtime
                        os.kill(int(process.name), ASK)


def place(threads: Sequence[str]) -> str:
    """Return where a process hangs by its threads' stacks, the main thread's last; empty if it waits for its peers.

    If the main thread waits for another thread, that one hangs.
    """
    own = [(frame, thread[: frame.start()]) for thread in reversed(threads) if (frame := OWN.search(thread))]
    if not own or PEERS.search(own[0][1]):
        return ""
    hangs = [frame for frame, inner in own if not PEERS.search(inner) and not THREADS.search(inner)]
    if not hangs and any(PEERS.search(inner) for _, inner in own):
        return ""
    file, line, function = (hangs or [own[0][0]])[0].groups()
    return f"{function} ({os.path.relpath(file, PROJECT)}:{line})"

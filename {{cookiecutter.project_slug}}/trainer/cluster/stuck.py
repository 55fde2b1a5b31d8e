"""Where a training process hangs: asked by a signal, it writes its stack, from which its replica's first process reads.

Nothing watches a run that goes well. faulthandler answers, even if C code holds the lock of Python. Linux alone has
files that exist only in memory, and shows those of a process to its parent.
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
from itertools import takewhile
from pathlib import Path

import psutil

from trainer.vertex.log import say

ASK = signal.SIGUSR2
RECORD, WIDTH = "training-record", 12  # the file: finished steps, in this many bytes, then the stack
ANSWER_SECONDS = 1.0
PROJECT = Path(__file__).parents[2]
FRAME = re.compile(r'  File "(.+)", line (\d+) in (\S+)')
LIBRARY = re.compile(r"/lib/python3[^/]*/(?!site-packages/trainer/)|^<")
# Libraries in which a thread waits for other processes, and for other threads of its own process.
PEERS = re.compile(r"/torch/(distributed|autograd)/|/tensorflow/python/eager/execute\.py")
THREADS = re.compile(r"/(threading|queue)\.py|/concurrent/futures/|/grain/")


@cache
def record() -> int:
    """Return the descriptor of this process's record; from the first call on the process answers."""
    file = -1
    if sys.platform == "linux":
        os.write(file := os.memfd_create(RECORD), b" " * WIDTH)
        faulthandler.register(ASK, file)
    return file


def took(step: int) -> None:
    """Record how many steps are finished, and when."""
    if (file := record()) >= 0:
        os.pwrite(file, str(step).encode().rjust(WIDTH), 0)


def end() -> None:
    """Tell this process's parent that a peer is lost; this process is about to end, and does not answer any more."""
    if (file := record()) >= 0:
        os.ftruncate(file, 0)
        signal.signal(ASK, signal.SIG_IGN)
        os.kill(os.getppid(), ASK)


def ask(replica: str) -> str:
    """Print the stack of the first process of this replica that hangs.

    Returns its finished steps, in WIDTH characters, and `workerpool1-0 is stuck in decode (trainer/data.py:71), 41 s
    after step 30`; empty if all have ended or wait for others.
    """
    records = [*_asked()]
    time.sleep(ANSWER_SECONDS)
    for rank, (file, seconds) in enumerate(records):
        with contextlib.suppress(OSError):  # it has ended
            text = file.read_text(errors="replace")
            step, threads = text[:WIDTH], [each for each in text[WIDTH:].split("\n\n") if any(_own(each))]
            if where := place(threads):
                who = replica if len(records) == 1 else f"process {rank} of {replica}"
                since = f", {seconds:.0f} s after step {step.strip()}" if step.strip() else ""
                say(f"{who} is stuck in {where}{since}; its stack:\n" + "\n\n".join(threads), "ERROR")
                return f"{step}{who} is stuck in {where}{since}"
    return ""


def place(threads: Sequence[str]) -> str:
    """Return where a process hangs, by the stacks of its threads, the main thread's last; empty if it waits for peers.

    If the main thread waits for another thread, that one hangs.
    """
    own = [*filter(any, map(_own, reversed(threads)))]
    if not own or PEERS.search(own[0][1]):
        return ""
    hangs = [where for where, libraries in own if not PEERS.search(libraries) and not THREADS.search(libraries)]
    return next(iter(hangs), "" if any(PEERS.search(libraries) for _, libraries in own) else own[0][0])


def _own(thread: str) -> tuple[str, str]:
    """Return the innermost place of a thread that is in no library, and the files of the libraries called there."""
    frames = FRAME.findall(thread)
    libraries = [file for file, _, _ in takewhile(lambda frame: LIBRARY.search(frame[0]), frames)]
    for file, line, function in frames[len(libraries) :][:1]:
        return f"{function} ({os.path.relpath(file, PROJECT)}:{line})", "\n".join(libraries)
    return "", ""


def _asked() -> Iterator[tuple[Path, float]]:
    """Ask each process that this one has started; yields its record, and the seconds since it finished a step."""
    for process in psutil.Process().children():
        with contextlib.suppress(OSError):  # it has ended
            for file in Path(f"/proc/{process.pid}/fd").iterdir():
                if RECORD in os.readlink(file):
                    seconds = time.time() - file.stat().st_mtime
                    os.kill(process.pid, ASK)
                    yield file, seconds

"""A program whose lines are read as they come, and which is ended as soon as they have told enough."""

import contextlib
import os
import select
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

GRACE = 10.0  # seconds between SIGTERM and SIGKILL


class Line(NamedTuple):
    """A line that a program has printed, on either stream, and when it came, on the clock of time.monotonic."""

    at: float
    text: str


@contextlib.contextmanager
def started(
    command: Sequence[str], folder: Path, environ: Mapping[str, str], seconds: float, grace: float = GRACE
) -> Iterator[Iterator[Line]]:
    """The lines of this program. When the block ends, so do the program and the processes that it has started.

    The lines raise TimeoutError when the program still runs after so many seconds.
    """
    process = subprocess.Popen(
        command, cwd=folder, env=environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True
    )
    assert process.stdout is not None
    with process.stdout as output:
        try:
            yield read(output.fileno(), time.monotonic() + seconds)
        finally:
            end(process, grace)


def read(file: int, deadline: float) -> Iterator[Line]:
    """Each line once it is whole."""
    rest = b""
    while True:
        ready, _, _ = select.select([file], [], [], max(deadline - time.monotonic(), 0))
        if not ready:
            raise TimeoutError
        part = os.read(file, 1 << 16)
        if not part:
            return
        *whole, rest = (rest + part).split(b"\n")
        for line in whole:
            yield Line(time.monotonic(), line.decode(errors="replace"))


def end(process: "subprocess.Popen[bytes]", grace: float) -> None:
    """Ask its process group to end, and after the grace time kill what is left of it."""
    with contextlib.suppress(ProcessLookupError):  # all have ended
        os.killpg(process.pid, signal.SIGTERM)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(grace)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()

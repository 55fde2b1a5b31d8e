"""Run a program, read each line of its output immediately, and stop the program after enough lines."""

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
    """A line that a program printed to stdout or stderr, and the line's time according to time.monotonic."""

    at: float
    text: str


@contextlib.contextmanager
def started(
    command: Sequence[str], folder: Path, environ: Mapping[str, str], seconds: float, grace: float = GRACE
) -> Iterator[Iterator[Line]]:
    """Start a program and yield its output lines. After the block, stop the program and its child processes.

    If the program still runs after `seconds`, the iterator of lines raises TimeoutError.
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
    """Yield each output line as soon as the line is complete."""
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
    """Send SIGTERM to the process group, and kill the remaining processes after the grace period."""
    with contextlib.suppress(ProcessLookupError):  # all processes have exited
        os.killpg(process.pid, signal.SIGTERM)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(grace)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()

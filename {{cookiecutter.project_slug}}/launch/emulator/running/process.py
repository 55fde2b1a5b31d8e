"""One started replica: its shim, its log, and the threads that follow it."""

import contextlib
import io
import os
import signal
import subprocess
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from launch.emulator.home import private_file
from launch.emulator.running.isolation import Isolation
from launch.faults import FaultError
from launch.replicas import Replica

LAST_LINES = 20
LONGEST_LINE = 2**22  # bytes; a longer one is cut in pieces, or it would fill the memory

LIFELINE_SECONDS = 3
READ_SECONDS = 10  # for what a replica printed last: a slow terminal has some thousand lines to go

Show = Callable[[Replica, str], None]


@dataclass(frozen=True)
class Ended:
    """How one replica ended; a code above 128 is a signal's number plus 128."""

    replica: Replica
    code: int
    last_lines: tuple[str, ...]

    @property
    def signal_name(self) -> str:
        """The name of the signal that ended it, or "" if none did; 255, say, is no signal."""
        return signal.Signals(self.code - 128).name if self.code - 128 in set(signal.Signals) else ""

    def __str__(self) -> str:
        if self.signal_name:
            return f"{self.replica.name} was ended by {self.signal_name} (exit code {self.code})"
        return f"{self.replica.name} exited with code {self.code}"


class StartError(FaultError):
    """The system takes neither such a command nor such an environment."""


def open_log(logs: Path, replica: Replica) -> io.RawIOBase:
    """The replica's log file, to be continued."""
    return io.FileIO(logs / f"{replica.name}.log", "ab", opener=private_file)


def tell(replica: Replica, line: str, log: io.RawIOBase, show: Show) -> None:
    """Log a line and show it.

    A full disk, or a reader who has left, as in `| head`, must not leave the replica with a full pipe.
    """
    with contextlib.suppress(OSError):
        log.write(f"{line}\n".encode())
    with contextlib.suppress(Exception, SystemExit):
        show(replica, line)


class Process:
    """A started replica; `ended` is called once, from another thread.

    Raises:
        StartError: its arguments or its environment are no system's.
    """

    def __init__(
        self,
        replica: Replica,
        logs: Path,
        show: Show,
        isolation: Isolation,
        ended: "Callable[[Process, Ended], None]",
    ) -> None:
        self._replica = replica
        self._show = show
        self._log = open_log(logs, replica)
        self._last_lines: deque[str] = deque(maxlen=LAST_LINES)
        try:
            self._process = subprocess.Popen(
                isolation.command(replica.command),
                env=dict(replica.env),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                bufsize=0,
            )
        except (OSError, ValueError) as error:  # a NUL, or more than 128 KiB in one argument
            self._log.close()
            reason = error.strerror if isinstance(error, OSError) else error
            cure = "write long values to a file in a bucket; there may be no NUL, and no = in a variable's name"
            raise StartError(f"{replica.name}: this system cannot start it: {reason}; {cure}") from None
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self._waiter = threading.Thread(target=self._wait, args=(ended,), daemon=True)
        self._waiter.start()

    def terminate(self) -> None:
        """SIGTERM to the command itself, as a container's process 1 gets it."""
        self._order(b"T")

    def kill(self) -> None:
        """SIGKILL to the command; what it has started ends with it."""
        self._order(b"K")

    def freeze(self) -> None:
        """Stop everything in the replica."""
        self._order(b"S")

    def thaw(self) -> None:
        """Let it go on."""
        self._order(b"C")

    def wait(self, seconds: float) -> None:
        """Until it has ended, but no longer than this."""
        self._waiter.join(timeout=seconds)

    def let_go(self) -> None:
        """Close the lifeline: the shim ends everything, by and by."""
        assert self._process.stdin is not None
        self._process.stdin.close()

    def close(self) -> None:
        """End what is left: by the lifeline, which reaches more, and at once if that takes too long."""
        self.let_go()
        self._waiter.join(timeout=LIFELINE_SECONDS)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._waiter.join()

    def _order(self, letter: bytes) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(OSError, ValueError):  # it has just ended, or is closed
            self._process.stdin.write(letter)

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._log, io.BufferedReader(cast(io.RawIOBase, self._process.stdout)) as lines:
            while raw := lines.readline(LONGEST_LINE):
                line = raw.decode("utf-8", "replace").rstrip("\r\n")
                self._last_lines.append(line)
                tell(self._replica, line, self._log, self._show)

    def _wait(self, ended: "Callable[[Process, Ended], None]") -> None:
        code = self._process.wait()
        self._reader.join(timeout=READ_SECONDS)
        ended(self, Ended(self._replica, 128 - code if code < 0 else code, tuple(self._last_lines)))

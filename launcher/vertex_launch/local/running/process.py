"""Starts a replica's process, logs its output, and waits until it exits."""

import contextlib
import errno
import io
import os
import selectors
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO, cast

from vertex_launch.errors import FaultError
from vertex_launch.job.contract import Replica
from vertex_launch.job.state_dir import private_file
from vertex_launch.local.running.ended import Ended
from vertex_launch.local.running.lines import Splitter, Tail
from vertex_launch.local.running.namespaces import Isolation

SHIM_SECONDS = 3  # how long the shim may take to kill all processes after its standard input was closed
READ_SECONDS = 10  # after an exit, how long to wait for another line
DRAIN_SECONDS = 600  # after an exit, how long to read lines in total; detached processes may print without end
NOTES = "notes"  # a file in the log folder with sentences about the job, one for each line
CHUNK = 2**16  # how many bytes of a stream to read at a time

# The severities that Cloud Logging gives to plain lines. Source: output of `stream-logs` in
# github.com/GoogleCloudPlatform/vertex-ai-samples, issue 242.
STDOUT, STDERR = "INFO", "ERROR"

Show = Callable[[Replica, str, str], None]  # arguments: replica, line, severity of plain lines in its stream
Report = Callable[["Process", Ended], None]  # arguments: the process and its end


def open_log(logs: Path, replica: Replica) -> io.RawIOBase:
    """Open a replica's log file for appending."""
    return io.FileIO(logs / f"{replica.name}.log", "ab", opener=private_file)


def tell(replica: Replica, line: str, log: io.RawIOBase, show: Show, severity: str = STDOUT) -> None:
    """Write a line to the log, and show it.

    Errors such as a full disk or a closed pipe never stop the caller.
    """
    with contextlib.suppress(OSError):
        log.write(f"{line}\n".encode())
    with contextlib.suppress(Exception, SystemExit):
        show(replica, line, severity)


class Process:
    """The process of a started replica.

    When the process exits, a separate thread calls `report` once. Raises FaultError if the system can't start the
    process.
    """

    def __init__(self, replica: Replica, logs: Path, show: Show, isolation: Isolation, report: Report) -> None:
        self._replica = replica
        self._show = show
        self.tail = Tail()
        self.heard = time.monotonic()  # when the process started or its last line was shown
        log = open_log(logs, replica)
        try:
            self._process = subprocess.Popen(
                isolation.command(replica.command, replica.pool, logs / NOTES),
                env=dict(replica.env),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
                bufsize=0,
            )
        except (OSError, ValueError) as error:  # such as a NUL, or an argument of more than 128 KiB
            log.close()
            reason = error.strerror if isinstance(error, OSError) else error
            cure = "write long values to a file in a bucket; remove NUL characters, and any = in a variable name"
            if isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE, errno.EAGAIN, errno.ENOMEM):
                cure = "run fewer replicas at the same time, or increase this system's limits (see ulimit -a)"
            raise FaultError(f"{replica.name}: this system can't start the replica: {reason}; {cure}") from None
        self.number = self._process.pid  # the ID of the first process
        streams = (self._process.stdin, self._process.stdout, self._process.stderr)
        self._orders, *output = (cast(IO[bytes], stream) for stream in streams)
        self._reader = threading.Thread(target=self._read, args=(log, *output), daemon=True)
        self._reader.start()
        self._waiter = threading.Thread(target=self._wait, args=(report,), daemon=True)
        self._waiter.start()

    def send_signal(self, number: signal.Signals) -> None:
        """Send a signal to the replica.

        SIGTERM and SIGKILL are sent only to the command, because container runtimes send signals only to PID 1. Other
        signals are sent to all processes of the replica.
        """
        self._order(bytes([number]))

    def open_shell(self, terminal: str) -> None:
        """Start a shell in the replica's environment, and connect it to a terminal.

        The shell exits when the replica exits.
        """
        self._order(b"\0%s\n" % os.fsencode(terminal))

    def wait(self, seconds: float) -> None:
        """Wait at most `seconds` seconds for the process to exit."""
        self._waiter.join(timeout=seconds)

    def let_go(self) -> None:
        """Close the shim's standard input. The shim then kills all processes of the replica."""
        self._orders.close()

    def close(self) -> None:
        """Make the shim kill all remaining processes, including detached ones.

        If the shim takes too long, kill the processes directly.
        """
        self.let_go()
        self._waiter.join(timeout=SHIM_SECONDS)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._waiter.join()

    def _order(self, order: bytes) -> None:
        with contextlib.suppress(OSError, ValueError):  # the process has just exited or was closed
            self._orders.write(order)

    def _read(self, log: io.RawIOBase, stdout: IO[bytes], stderr: IO[bytes]) -> None:
        """Log and show every line of standard output and standard error, in order of arrival."""
        # The default selector would use another file descriptor for each replica.
        with log, stdout, stderr, selectors.PollSelector() as selector:
            selector.register(stdout, selectors.EVENT_READ, (Splitter(), STDOUT))
            selector.register(stderr, selectors.EVENT_READ, (Splitter(), STDERR))
            while selector.get_map():
                for key, _ in selector.select():
                    data = os.read(key.fd, CHUNK)
                    splitter, severity = key.data
                    for line in splitter.feed(data):
                        self.tail.add(line, severity)
                        tell(self._replica, line, log, self._show, severity)
                        self.heard = time.monotonic()
                    if not data:
                        selector.unregister(key.fileobj)

    def _wait(self, report: Report) -> None:
        code, now = self._process.wait(), time.monotonic()
        self._drain(now)
        tail, code = self.tail, 128 - code if code < 0 else code
        report(self, Ended(self._replica, code, tail.lines, tail.errors, now, raised=tail.raised, event=tail.event))

    def _drain(self, ended: float) -> None:
        """Wait for the last lines of the exited process, even if the terminal is slow."""
        while self._reader.is_alive() and time.monotonic() < ended + DRAIN_SECONDS:
            patience = max(ended, self.heard) + READ_SECONDS - time.monotonic()
            if patience <= 0:
                return
            self._reader.join(timeout=patience)

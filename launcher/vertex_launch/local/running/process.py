"""One started replica: its process, its log file, and the threads that follow both."""

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

SHIM_SECONDS = 3  # for the shim to end everything, once its standard input is closed
READ_SECONDS = 10  # without a line, after which no more are waited for
DRAIN_SECONDS = 600  # to take in the last lines at most: what detached processes print may never end
NOTES = "notes"  # in the folder of the logs: sentences on the job, a line each
CHUNK = 2**16  # bytes of a stream to read at once

# The severities that Cloud Logging gives to plain lines. Source: Vertex AI, as users of `stream-logs` see it
# (github.com/GoogleCloudPlatform/vertex-ai-samples, issue 242).
STDOUT, STDERR = "INFO", "ERROR"

Show = Callable[[Replica, str, str], None]  # a line, and the severity of plain lines of its stream
Report = Callable[["Process", Ended], None]  # how a process ended


def open_log(logs: Path, replica: Replica) -> io.RawIOBase:
    """The replica's log file, open at its end."""
    return io.FileIO(logs / f"{replica.name}.log", "ab", opener=private_file)


def tell(replica: Replica, line: str, log: io.RawIOBase, show: Show, severity: str = STDOUT) -> None:
    """Log a line and show it; whatever fails, as on a full disk or behind `| head`, the caller reads on."""
    with contextlib.suppress(OSError):
        log.write(f"{line}\n".encode())
    with contextlib.suppress(Exception, SystemExit):
        show(replica, line, severity)


class Process:
    """A started replica; `report` is called once, from another thread. Raises FaultError if the system refuses it."""

    def __init__(self, replica: Replica, logs: Path, show: Show, isolation: Isolation, report: Report) -> None:
        self._replica = replica
        self._show = show
        self.tail = Tail()
        self.heard = time.monotonic()  # when the last line was shown, or this began
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
        except (OSError, ValueError) as error:  # a NUL, or more than 128 KiB in one argument
            log.close()
            reason = error.strerror if isinstance(error, OSError) else error
            cure = "write long values to a file in a bucket; there may be no NUL, and no = in a variable's name"
            if isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE, errno.EAGAIN, errno.ENOMEM):
                cure = "run fewer replicas at the same time, or raise this system's limits (ulimit -a)"
            raise FaultError(f"{replica.name}: this system cannot start it: {reason}; {cure}") from None
        self.number = self._process.pid  # of its first process
        streams = (self._process.stdin, self._process.stdout, self._process.stderr)
        self._orders, *output = (cast(IO[bytes], stream) for stream in streams)
        self._reader = threading.Thread(target=self._read, args=(log, *output), daemon=True)
        self._reader.start()
        self._waiter = threading.Thread(target=self._wait, args=(report,), daemon=True)
        self._waiter.start()

    def send_signal(self, number: signal.Signals) -> None:
        """SIGTERM and SIGKILL are for the command alone, as for process 1 of a container; others for all processes."""
        self._order(bytes([number]))

    def open_shell(self, terminal: str) -> None:
        """Start a shell at a terminal, with what the replica sees; it ends with the replica."""
        self._order(b"\0%s\n" % os.fsencode(terminal))

    def wait(self, seconds: float) -> None:
        """Wait for its end, at most this long."""
        self._waiter.join(timeout=seconds)

    def let_go(self) -> None:
        """Close the shim's standard input: the shim then kills everything, which takes a moment."""
        self._orders.close()

    def close(self) -> None:
        """Kill all remaining processes: by the shim, which finds detached ones; directly, if it takes too long."""
        self.let_go()
        self._waiter.join(timeout=SHIM_SECONDS)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._waiter.join()

    def _order(self, order: bytes) -> None:
        with contextlib.suppress(OSError, ValueError):  # the process has just ended, or is closed
            self._orders.write(order)

    def _read(self, log: io.RawIOBase, stdout: IO[bytes], stderr: IO[bytes]) -> None:
        """Log and show every line of both streams, in the order of arrival."""
        # The default selector would take a file descriptor for each replica.
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
        """Wait for the last lines as long as they come, however slow the terminal is."""
        while self._reader.is_alive() and time.monotonic() < ended + DRAIN_SECONDS:
            patience = max(ended, self.heard) + READ_SECONDS - time.monotonic()
            if patience <= 0:
                return
            self._reader.join(timeout=patience)

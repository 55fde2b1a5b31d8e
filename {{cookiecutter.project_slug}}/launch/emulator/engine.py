"""Runs replicas as processes of this machine: starts, watches and ends them.

The job succeeds when its primary, the one replica of pool 0, exits with 0; the others are then stopped.
Any other exit code ends the job. Whatever happens to the launcher, no process is left behind.
"""

import contextlib
import functools
import os
import queue
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from launch.replicas import Replica

SHIM = Path(__file__).with_name("replica.py")
PRIMARY = "workerpool0-0"
LAST_LINES = 20

LIFELINE_SECONDS = 3
READ_SECONDS = 10  # for what a replica printed last: a slow terminal has some thousand lines to go

# After a first failure others follow within moments; a signal among them is the likelier cause.
SETTLE_SECONDS = 1.5

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


@dataclass(frozen=True)
class Outcome:
    """How the job ended: `failures` in the order of likely cause, empty on success."""

    failures: tuple[Ended, ...]

    @property
    def succeeded(self) -> bool:
        return not self.failures


def run(
    replicas: Sequence[Replica], logs: Path, show: Show, grace: float = 5, prefix: Sequence[str] | None = None
) -> Outcome:
    """Run these replicas to the end of the job.

    Args:
        replicas: those to start; `env` is all that each one's command sees.
        logs: folder for one log file a replica.
        show: called with each line a replica prints, from several threads.
        grace: seconds between SIGTERM and SIGKILL.
        prefix: command under which each replica runs; by default that of `namespace`.
    """
    logs.mkdir(parents=True, exist_ok=True)
    ends: queue.SimpleQueue[Ended] = queue.SimpleQueue()
    with _signals_as_exceptions():
        running: list[_Process] = []
        try:
            for replica in replicas:
                running.append(_Process(replica, logs, show, ends.put, namespace() if prefix is None else prefix))
            return _watch(ends, len(running), grace)
        finally:
            _stop(running, grace)


def _watch(ends: "queue.SimpleQueue[Ended]", count: int, grace: float) -> Outcome:
    """Wait for the primary's success or for a failure; then a moment for the others to end by themselves."""
    failures: list[Ended] = []
    succeeded = False
    deadline = float("inf")
    while count and time.monotonic() < deadline:
        try:
            ended = ends.get(timeout=0.2)
        except queue.Empty:
            continue
        count -= 1
        if ended.code and not succeeded:
            failures.append(ended)
            deadline = min(deadline, time.monotonic() + SETTLE_SECONDS)
        elif ended.replica.name == PRIMARY and not failures:
            succeeded = True
            deadline = time.monotonic() + grace
    return Outcome(tuple(sorted(failures, key=lambda ended: not ended.signal_name)))


def _stop(running: Sequence["_Process"], grace: float) -> None:
    """SIGTERM, grace, SIGKILL; returns when all are gone. Another Ctrl-C skips the grace."""
    try:
        for process in running:
            process.signal(signal.SIGTERM)
        deadline = time.monotonic() + grace
        while any(process.alive for process in running) and time.monotonic() < deadline:
            time.sleep(0.05)
    finally:
        for process in running:
            process.close()


class _Process:
    """A started replica: its process group, its log and the threads that follow it."""

    def __init__(
        self, replica: Replica, logs: Path, show: Show, ended: Callable[[Ended], None], prefix: Sequence[str]
    ) -> None:
        self._replica = replica
        self._show = show
        self._log = (logs / f"{replica.name}.log").open("w", encoding="utf-8")
        self._last_lines: deque[str] = deque(maxlen=LAST_LINES)
        self._process = subprocess.Popen(
            [*prefix, sys.executable, "-I", str(SHIM), *replica.command],
            env=dict(replica.env),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self._waiter = threading.Thread(target=self._wait, args=(ended,), daemon=True)
        self._waiter.start()

    @property
    def alive(self) -> bool:
        return self._process.returncode is None

    def signal(self, number: int) -> None:
        """To the whole process group: on a laptop nobody else cleans up after a replica."""
        if self.alive:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, number)

    def close(self) -> None:
        """End what is left: by the lifeline, which reaches more, and at once if that takes too long."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._waiter.join(timeout=LIFELINE_SECONDS)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._waiter.join()

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._log:
            for raw in self._process.stdout:
                line = raw.decode("utf-8", "replace").rstrip("\r\n")
                self._log.write(f"{line}\n")
                self._log.flush()
                self._last_lines.append(line)
                # A reader who has left, as in `| head`, must not leave the replica with a full pipe.
                with contextlib.suppress(Exception, SystemExit):
                    self._show(self._replica, line)

    def _wait(self, ended: Callable[[Ended], None]) -> None:
        code = self._process.wait()
        self._reader.join(timeout=READ_SECONDS)
        ended(Ended(self._replica, 128 - code if code < 0 else code, tuple(self._last_lines)))


@contextlib.contextmanager
def _signals_as_exceptions() -> Iterator[None]:
    """SIGTERM and SIGHUP end the launcher as Ctrl-C does: through its `finally` clauses.

    SIGINT too: a launcher started in the background by a shell would otherwise ignore it for ever.
    """

    def interrupt(number: int, _: object) -> None:
        raise KeyboardInterrupt(signal.Signals(number).name)

    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, interrupt) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@functools.cache
def namespace() -> tuple[str, ...]:
    """The prefix that gives a replica its own PID namespace, empty where the system permits none.

    In a namespace even a detached grandchild ends with its replica, also where the replica itself is killed.
    """
    unshare = shutil.which("unshare")  # its full path: a replica may have a PATH of its own
    if not unshare:
        return ()
    own = (unshare, "--pid", "--fork", "--kill-child", "--mount-proc")
    for prefix in (own, (*own, "--user", "--map-current-user")):
        with contextlib.suppress(OSError):
            if subprocess.run([*prefix, "true"], capture_output=True, timeout=10).returncode == 0:
                return prefix
    return ()

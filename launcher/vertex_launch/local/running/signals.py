"""Handles the signals that stop the launcher."""

import contextlib
import signal
from collections.abc import Iterator

# The longest wait. Python handles a signal only after a wait that the signal doesn't interrupt. This happens if the
# signal arrives just before the wait, or if macOS delivers the signal to another thread.
LOOK_SECONDS = 0.5


@contextlib.contextmanager
def signals_as_exceptions() -> Iterator[None]:
    """Make SIGTERM and SIGHUP raise KeyboardInterrupt, as Ctrl-C does, so that `finally` clauses run.

    This function also handles SIGINT, because shells start background processes with SIGINT ignored. In the block, the
    main thread should wait for at most LOOK_SECONDS at a time.
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

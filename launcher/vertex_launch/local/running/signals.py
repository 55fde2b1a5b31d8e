"""Handles the signals that stop the launcher."""

import contextlib
import signal
from collections.abc import Iterator


@contextlib.contextmanager
def signals_as_exceptions() -> Iterator[None]:
    """Make SIGTERM and SIGHUP raise KeyboardInterrupt, as Ctrl-C does, so that `finally` clauses run.

    This function also handles SIGINT, because shells start background processes with SIGINT ignored.
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

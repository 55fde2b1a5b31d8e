"""What ends a launcher from outside."""

import contextlib
import signal
from collections.abc import Iterator


@contextlib.contextmanager
def signals_as_exceptions() -> Iterator[None]:
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

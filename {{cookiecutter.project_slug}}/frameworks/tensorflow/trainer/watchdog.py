"""Bounds a wait in C that holds Python's lock, so that no Python thread and no signal handler would run."""

import contextlib
import ctypes
import faulthandler
import sys
from collections.abc import Iterator

from trainer.errors import PeerError

MONOTONIC, IN_A_THREAD = 1, 2  # CLOCK_MONOTONIC and SIGEV_THREAD of Linux
LAST_WORDS_SECONDS = 3.0


class _Event(ctypes.Structure):
    """`struct sigevent` of Linux, 64 bits."""

    _fields_ = (
        ("value", ctypes.c_void_p),
        ("signal", ctypes.c_int),
        ("how", ctypes.c_int),
        ("function", ctypes.c_void_p),
        ("rest", ctypes.c_char * 40),
    )


@contextlib.contextmanager
def bounded(seconds: float) -> Iterator[None]:
    """After so many seconds in the block print where it waits, and end the process with the code of a lost peer."""
    # faulthandler's own end has code 1, which would blame the user; on macOS and old Linux it has to do.
    has_timers = sys.platform == "linux" and hasattr(ctypes.CDLL(None), "timer_create")
    faulthandler.dump_traceback_later(seconds, exit=not has_timers)
    try:
        with _exit_after(seconds + LAST_WORDS_SECONDS) if has_timers else contextlib.nullcontext():
            yield
    finally:
        faulthandler.cancel_dump_traceback_later()


@contextlib.contextmanager
def _exit_after(seconds: float) -> Iterator[None]:
    """A timer of the system, which calls C's `_exit` in a thread of its own."""
    system, timer = ctypes.CDLL(None, use_errno=True), ctypes.c_void_p()
    end = ctypes.cast(system._exit, ctypes.c_void_p).value
    event = _Event(value=PeerError.exit_code, how=IN_A_THREAD, function=end)
    never_again_then = (ctypes.c_long * 4)(0, 0, int(seconds), int(seconds % 1 * 1e9))
    if system.timer_create(MONOTONIC, ctypes.byref(event), ctypes.byref(timer)):
        raise OSError(ctypes.get_errno(), "timer_create")
    system.timer_settime(timer, 0, never_again_then, None)
    try:
        yield
    finally:
        system.timer_delete(timer)

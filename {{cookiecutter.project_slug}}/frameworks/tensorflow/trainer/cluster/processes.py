"""Limits how long a replica's process waits for peers, and reports a lost peer in one sentence."""

import contextlib
import ctypes
import faulthandler
import re
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path

import tensorflow as tf

from trainer.cluster import stuck
from trainer.cluster.spec import Cluster
from trainer.vertex.errors import LostPeerError

MONOTONIC, IN_A_THREAD = 1, 2  # CLOCK_MONOTONIC and SIGEV_THREAD of Linux
LAST_WORDS_SECONDS = 3.0
# TensorFlow raises these errors for a peer that is gone or silent. The user's code can only raise them in these files.
LOSSES = (tf.errors.UnavailableError, tf.errors.AbortedError, tf.errors.DeadlineExceededError)
YOURS = [Path(__file__).parents[1] / name for name in ("data.py", "model.py")]
NCCL_LOST = "remote process exited or there was a network error"  # within an InternalError
ABORTED = "Collective ops is aborted by: "


class _Event(ctypes.Structure):
    """Linux's `struct sigevent` on 64-bit systems."""

    _fields_ = (
        ("value", ctypes.c_void_p),
        ("signal", ctypes.c_int),
        ("how", ctypes.c_int),
        ("function", ctypes.c_void_p),
        ("rest", ctypes.c_char * 40),
    )


@contextlib.contextmanager
def bounded(seconds: float) -> Iterator[None]:
    """Set a timeout, in seconds, for the block.

    On timeout, print a traceback, and exit with the exit code for a lost peer.

    The block might wait in C code that holds the GIL, which blocks Python threads and signal handlers. Therefore, the
    timeout uses an operating system timer.
    """
    # faulthandler exits with code 1, which would blame the user. On macOS and old Linux, there is no alternative.
    has_timers = sys.platform == "linux" and hasattr(ctypes.CDLL(None), "timer_create")
    faulthandler.dump_traceback_later(seconds, exit=not has_timers)
    try:
        with _exit_after(seconds + LAST_WORDS_SECONDS) if has_timers else contextlib.nullcontext():
            yield
    finally:
        faulthandler.cancel_dump_traceback_later()


@contextlib.contextmanager
def _exit_after(seconds: float) -> Iterator[None]:
    """Start a system timer that calls C's `_exit` in its own thread."""
    system, timer = ctypes.CDLL(None, use_errno=True), ctypes.c_void_p()
    end = ctypes.cast(system._exit, ctypes.c_void_p).value
    event = _Event(value=LostPeerError.exit_code, how=IN_A_THREAD, function=end)
    never_again_then = (ctypes.c_long * 4)(0, 0, int(seconds), int(seconds % 1 * 1e9))
    if system.timer_create(MONOTONIC, ctypes.byref(event), ctypes.byref(timer)):
        raise OSError(ctypes.get_errno(), "timer_create")
    system.timer_settime(timer, 0, never_again_then, None)
    try:
        yield
    finally:
        system.timer_delete(timer)


@contextlib.contextmanager
def with_peers(cluster: Cluster) -> Iterator[None]:
    """Replace TensorFlow's error for a lost peer with a one-sentence error that has no traceback.

    Raises:
        LostPeerError: if TensorFlow lost the connection to another machine in the cluster.
    """
    stuck.record()
    try:
        yield
    except tf.errors.OpError as error:
        loss = lost_peer(error, cluster)
        if not loss:
            raise
        said = f"{cluster.name} lost a peer: {loss}; after a restart, training resumes from the last checkpoint"
        raise LostPeerError(said, lost_peer="") from None  # the heartbeat identifies the peer


def lost_peer(error: tf.errors.OpError, cluster: Cluster) -> str:
    """Return a one-line description of the lost replica that the error reports.

    For any other error, return an empty string.
    """
    text = str(error.message) or type(error).__name__
    yours = _is_yours(error) and ABORTED not in text  # build() may lose a peer, too, when it creates variables
    if len(cluster.nodes) == 1 or yours or not (isinstance(error, LOSSES) or NCCL_LOST in text):
        return ""
    first, *others = (text.rpartition(ABORTED)[2] or text).splitlines()
    what = f"{first} {others[0]}" if first.endswith(":") and others else first.partition(". ")[0]
    return re.sub(r"/job:(chief|worker)(?:/replica:\d+)?/task:(\d+)", lambda task: _name(cluster, *task.groups()), what)


def _is_yours(error: tf.errors.OpError) -> bool:
    """Return whether data.py or model.py raised the error (for example, because a bucket doesn't respond)."""
    return any(Path(frame.f_code.co_filename) in YOURS for frame, _ in traceback.walk_tb(error.__traceback__))


def _name(cluster: Cluster, job: str, index: str) -> str:
    """Return the name of the replica with this TensorFlow job name and task index."""
    rank = int(index) + (job == "worker")
    return cluster.nodes[rank].name if rank < len(cluster.nodes) else f"{job} {index}"

"""Defines errors with a message for the user and an exit code that shows whether a restart can help."""

import contextlib
import traceback
from collections.abc import Iterator
from typing import Any

EXPORTABLE = (
    "use only the framework's operations in the model's forward pass, or change the export in trainer/export.py"
)


class TrainerError(ValueError):
    """An error that the user can fix. `task.py` prints the text without a traceback and exits with `exit_code`.

    Args:
        event: additional fields for the log lines that contain the error.
    """

    exit_code = 1  # permanent: a restart would fail again

    def __init__(self, text: str = "", **event: Any) -> None:
        super().__init__(text)
        self.event = event


class PeerError(TrainerError):
    """The error that a healthy replica raises if another replica is lost, late, or preempted.

    A restart resumes the run.
    """

    exit_code = 75  # EX_TEMPFAIL of sysexits.h: try again


class LostPeerError(PeerError):
    """The error that a process raises if it has lost a peer.

    The parent process reports the peer's name, and exits with PeerError's code.
    """

    exit_code = 175


class EndedEarlyError(TrainerError):
    """The error for a training process that exited prematurely with code 0.

    Vertex AI would treat the exit as a success.
    """

    def __init__(self, replica: str) -> None:
        super().__init__(
            f"{replica}: a training process exited with code 0 before training was complete; look for a call to"
            " exit, sys.exit, or os._exit"
        )


@contextlib.contextmanager
def exporting(file: str) -> Iterator[None]:
    """Convert an exception in the block to a one-sentence TrainerError. The block exports the model.

    If code in `file` raised the exception, the sentence contains the line number in `file`.
    """
    try:
        yield
    except Exception as error:
        frames = traceback.extract_tb(error.__traceback__)
        place = next((f"{file}:{frame.lineno}: " for frame in reversed(frames) if frame.filename == file), "")
        reason = f"{type(error).__name__}: {error}".partition("\n")[0]
        raise TrainerError(f"{place}the model can't be exported: {reason}; {EXPORTABLE}") from None


@contextlib.contextmanager
def no_exit(replica: str) -> Iterator[None]:
    """Raise EndedEarlyError if the block calls sys.exit(0)."""
    try:
        yield
    except SystemExit as end:
        if end.code:
            raise
        raise EndedEarlyError(replica) from None

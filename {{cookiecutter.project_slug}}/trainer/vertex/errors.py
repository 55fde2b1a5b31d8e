"""The exceptions whose text is meant for the person who started the job; the exit code says who is to blame."""

import contextlib
import traceback
from collections.abc import Iterator
from typing import Any

EXPORTABLE = "write its forward pass in operations of the framework alone, or export another form in trainer/export.py"


class TrainerError(ValueError):
    """A fault that the user can cure; `task.py` prints its text without a traceback and ends with its exit code.

    Args:
        event: fields of the log lines that say it.
    """

    exit_code = 1  # permanent: another start would end the same way

    def __init__(self, text: str = "", **event: Any) -> None:
        super().__init__(text)
        self.event = event


class PeerError(TrainerError):
    """Another replica was lost, late or preempted; nothing is wrong here, and another start resumes."""

    exit_code = 75  # EX_TEMPFAIL of sysexits.h: try again


class LostPeerError(PeerError):
    """A peer was lost while this process trained; its parent says which one, and ends with PeerError's code."""

    exit_code = 175


class EndedEarlyError(TrainerError):
    """A training process ended with code 0 before the training did; the service would take that for a success."""

    def __init__(self, replica: str) -> None:
        super().__init__(
            f"{replica}: a training process ended with code 0 before the training did; look for a call of exit,"
            " sys.exit or os._exit"
        )


@contextlib.contextmanager
def exporting(file: str) -> Iterator[None]:
    """Turn an error of the block, which exports the model of this file, into one sentence with the line of the file."""
    try:
        yield
    except Exception as error:
        frames = traceback.extract_tb(error.__traceback__)
        place = next((f"{file}:{frame.lineno}: " for frame in reversed(frames) if frame.filename == file), "")
        reason = f"{type(error).__name__}: {error}".partition("\n")[0]
        raise TrainerError(f"{place}the model cannot be exported: {reason}; {EXPORTABLE}") from None


@contextlib.contextmanager
def no_exit(replica: str) -> Iterator[None]:
    """Take sys.exit(0) within the block for what it is: raises EndedEarlyError."""
    try:
        yield
    except SystemExit as end:
        if end.code:
            raise
        raise EndedEarlyError(replica) from None

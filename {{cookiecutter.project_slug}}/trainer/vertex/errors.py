"""The exceptions whose text is meant for the person who started the job; the exit code says who is to blame."""

import contextlib
from collections.abc import Iterator


class TrainerError(ValueError):
    """A fault that the user can cure; `task.py` prints its text without a traceback and ends with its exit code."""

    exit_code = 1  # permanent: another start would end the same way


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
def no_exit(replica: str) -> Iterator[None]:
    """Take sys.exit(0) within the block for what it is: raises EndedEarlyError."""
    try:
        yield
    except SystemExit as end:
        if end.code:
            raise
        raise EndedEarlyError(replica) from None

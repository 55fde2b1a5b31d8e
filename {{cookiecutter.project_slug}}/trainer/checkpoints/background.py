"""Work that goes on beside the training: writing a checkpoint, which needs only a copy of the state."""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

from trainer.vertex.errors import TrainerError

Own = TypeVar("Own", bound="Background")


class Background:
    """Another thread, for one piece of work at a time; what that raises is raised to whoever looks."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(max_workers=1)
        self._work: Future[None] | None = None

    def __enter__(self: Own) -> Own:
        return self

    def __exit__(self, *error: Any) -> None:
        """Let the work end, also after an error of the block: nobody would do it again.

        Of two errors the user's counts: a disk that is full for one process is why the others have lost it.
        """
        try:
            self.wait()
        except TrainerError:
            raise
        except Exception:
            if not any(error):
                raise

    def start(self, work: Callable[[], None]) -> None:
        """Begin the work; the one before must have been waited for."""
        assert self._work is None, "two pieces of work at once"
        self._work = self._thread.submit(work)

    def check(self) -> None:
        """Raise what the work has raised, if it has; does not wait."""
        if self._work and self._work.done():
            self.wait()

    def wait(self) -> None:
        """Return when the work is done; raises what it raised."""
        work, self._work = self._work, None
        if work:
            work.result()

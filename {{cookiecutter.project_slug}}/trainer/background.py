"""Work that goes on beside the training: writing a checkpoint, which needs only a copy of the state."""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor


class Background:
    """Another thread, for one piece of work at a time; what that raises is raised to whoever looks."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(max_workers=1)
        self._work: Future[None] | None = None

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

"""Runs a task in another thread while the training continues, such as writing a checkpoint."""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

from trainer.vertex.errors import TrainerError

Own = TypeVar("Own", bound="Background")


class Background:
    """A thread that runs one task at a time. `check` and `wait` raise the task's exception."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(max_workers=1)
        self._work: Future[None] | None = None

    def __enter__(self: Own) -> Own:
        return self

    def __exit__(self, *error: Any) -> None:
        """Wait for the task, even after an error in the block, because nothing would run the task again.

        If both fail, a TrainerError of the task takes precedence. For example, if one process's disk is full, the
        other processes only report a lost peer.
        """
        try:
            self.wait()
        except TrainerError:
            raise
        except Exception:
            if not any(error):
                raise

    def start(self, work: Callable[[], None]) -> None:
        """Start the task. The caller must have waited for the previous task."""
        assert self._work is None, "another task is still running"
        self._work = self._thread.submit(work)

    def check(self) -> None:
        """Raise the task's exception if the task has failed. This doesn't wait for a running task."""
        if self._work and self._work.done():
            self.wait()

    def wait(self) -> None:
        """Wait until the task is done, and raise its exception if it failed."""
        work, self._work = self._work, None
        if work:
            work.result()

"""Runs a task, such as writing a checkpoint, in a background thread while training continues."""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

from trainer.vertex.errors import TrainerError

Own = TypeVar("Own", bound="Background")


class Background:
    """A thread that runs one task at a time. If the task fails, `check` and `wait` raise its exception."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(max_workers=1)
        self._work: Future[None] | None = None

    def __enter__(self: Own) -> Own:
        return self

    def __exit__(self, *error: Any) -> None:
        """Wait for the task, even if the block raises an exception, because the task won't be run again.

        If both the block and the task fail, the task's TrainerError takes precedence. For example, an error about a
        full disk explains more than one about a lost peer, which might be only a consequence.
        """
        try:
            self.wait()
        except TrainerError:
            raise
        except Exception:
            if not any(error):
                raise

    def start(self, work: Callable[[], None]) -> None:
        """Start the task. The caller must wait for the previous task before calling this function."""
        assert self._work is None, "another task is still running"
        self._work = self._thread.submit(work)

    def check(self) -> None:
        """If the task has failed, raise its exception. If the task is still running, return immediately."""
        if self._work and self._work.done():
            self.wait()

    def wait(self) -> None:
        """Wait until the task has finished. If the task failed, raise its exception."""
        work, self._work = self._work, None
        if work:
            work.result()

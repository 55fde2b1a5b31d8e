"""The jobs that the command `run` starts in the folder of this service."""

import contextlib
import threading
from pathlib import Path
from types import TracebackType
from typing import Self

from vertex_launch.local.api.store import Store
from vertex_launch.local.jobs.custom_jobs import COLLECTION, Jobs

POLL_SECONDS = 0.5


class Runs:
    """Keeps the store up to date with what `run` writes of its jobs, for as long as it is open."""

    def __init__(self, store: Store, jobs: Jobs, folder: Path) -> None:
        self._store = store
        self._jobs = jobs
        self._folder = folder
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="runs", daemon=True)
        self._changes: dict[Path, int] = {}  # folder of jobs -> its last change that was seen

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closing.set()
        self._thread.join()

    def _follow(self) -> None:
        while not self._closing.wait(POLL_SECONDS):
            with contextlib.suppress(OSError):  # somebody cleans up
                for folder in (self._folder / "projects").glob(f"*/locations/*/{COLLECTION}"):
                    self._find(folder)
            self._jobs.follow_runs()

    def _find(self, folder: Path) -> None:
        """Take in the jobs that the store does not know, if the folder has changed."""
        change = folder.stat().st_mtime_ns
        if self._changes.get(folder) != change:
            self._changes[folder] = change
            names = {file.relative_to(self._folder).as_posix().removesuffix(".json") for file in folder.glob("*.json")}
            for name in names - {job["name"] for job in self._store.all(COLLECTION)}:
                self._store.reread(name)

"""Shows a service's clients the jobs that the command `run` starts in the same folder."""

import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path

from vertex_launch.local.api.store import Store
from vertex_launch.local.jobs.custom_jobs import COLLECTION, Jobs

POLL_SECONDS = 0.5


@contextlib.contextmanager
def runs_in_store(store: Store, jobs: Jobs, folder: Path) -> Iterator[None]:
    """Keep the store up to date with what `run` writes, in a thread."""
    closing = threading.Event()
    thread = threading.Thread(target=_follow, args=(store, jobs, folder, closing), name="runs", daemon=True)
    thread.start()
    try:
        yield
    finally:
        closing.set()
        thread.join()


def _follow(store: Store, jobs: Jobs, folder: Path, closing: threading.Event) -> None:
    seen: dict[Path, int] = {}  # folder of jobs -> its last change
    while not closing.wait(POLL_SECONDS):
        with contextlib.suppress(OSError):  # the user may be cleaning up
            changes = {path: path.stat().st_mtime_ns for path in folder.glob(f"projects/*/locations/*/{COLLECTION}")}
            known = {job["name"] for job in store.all(COLLECTION)}
            for path in (path for path, change in changes.items() if seen.get(path) != change):
                names = {file.relative_to(folder).as_posix().removesuffix(".json") for file in path.glob("*.json")}
                for name in names - known:
                    store.reread(name)
            seen = changes
        jobs.follow_runs()

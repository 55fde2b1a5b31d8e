"""Shows a service's clients the jobs that the command `run` starts in the same folder."""

import contextlib
from contextlib import AbstractContextManager
from pathlib import Path

from vertex_launch.local.api.store import Store
from vertex_launch.local.jobs.background import repeating
from vertex_launch.local.jobs.custom_jobs import COLLECTION, Jobs

POLL_SECONDS = 0.5


def runs_in_store(store: Store, jobs: Jobs, folder: Path) -> AbstractContextManager[None]:
    """Keeps the store up to date with what `run` writes, from another thread, until the block ends."""
    seen: dict[Path, int] = {}  # folder of jobs -> its last change

    def follow() -> None:
        with contextlib.suppress(OSError):  # the user may be cleaning up
            known = {job["name"] for job in store.all(COLLECTION)}
            for path in folder.glob(f"projects/*/locations/*/{COLLECTION}"):
                changed = path.stat().st_mtime_ns
                if seen.get(path) != changed:
                    names = {file.relative_to(folder).as_posix().removesuffix(".json") for file in path.glob("*.json")}
                    for name in names - known:
                        store.reread(name)
                    seen[path] = changed
        jobs.follow_runs()

    return repeating(follow, POLL_SECONDS)

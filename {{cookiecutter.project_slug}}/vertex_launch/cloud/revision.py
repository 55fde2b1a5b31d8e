"""Which code a job is of, as labels of the job."""

import subprocess
from pathlib import Path

SECONDS = 10.0  # for git, which may lie on a slow network


def labels(folder: Path) -> dict[str, str]:
    """`git-revision`, and `git-dirty` where files differ from it; nothing outside of a repository."""
    revision = _git(folder, "rev-parse", "--short=12", "HEAD")
    if not revision:
        return {}
    dirty = {"git-dirty": "true"} if _git(folder, "status", "--porcelain") else {}
    return {"git-revision": revision, **dirty}


def _git(folder: Path, *words: str) -> str:
    """What git says, "" if there is no git, no repository, or no commit."""
    try:
        done = subprocess.run(("git", *words), cwd=folder, capture_output=True, text=True, timeout=SECONDS)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""

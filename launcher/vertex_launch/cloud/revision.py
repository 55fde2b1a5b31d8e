"""The code revision of a job or an image."""

import subprocess
from pathlib import Path

SECONDS = 10.0  # timeout for git, whose repository may be on a slow network drive


def labels(folder: Path) -> dict[str, str]:
    """Return `git-revision`, and `git-dirty` if files differ from it; empty outside a repository."""
    if not (revision := _git(folder, "rev-parse", "--short=12", "HEAD")):
        return {}
    changed = _git(folder, "status", "--porcelain")
    dirty = {"git-dirty": "unknown" if changed is None else "true"} if changed != "" else {}
    return {"git-revision": revision, **dirty}


def described(folder: Path) -> str:
    """Return the revision for an image's label and tag, with `-dirty` if files differ; "" outside a repository."""
    return _git(folder, "describe", "--always", "--dirty", "--abbrev=12", "--match=") or ""


def _git(folder: Path, *words: str) -> str | None:
    """Return the output of git, or None without git, a repository, a commit, or a response in time."""
    try:
        done = subprocess.run(("git", *words), cwd=folder, capture_output=True, text=True, timeout=SECONDS)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None

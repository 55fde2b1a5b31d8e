"""Reads the code's Git revision to label jobs and images."""

import subprocess
from pathlib import Path

SECONDS = 10.0  # timeout for git, whose repository may be on a slow network drive


def labels(folder: Path) -> dict[str, str]:
    """Return the `git-revision` label. If files have uncommitted changes, also return the `git-dirty` label.

    Outside a Git repository, return an empty dictionary.
    """
    if not (revision := _git(folder, "rev-parse", "--short=12", "HEAD")):
        return {}
    changed = _git(folder, "status", "--porcelain")
    dirty = {"git-dirty": "unknown" if changed is None else "true"} if changed != "" else {}
    return {"git-revision": revision, **dirty}


def described(folder: Path) -> str:
    """Return the Git revision for an image's label and tag. If files have uncommitted changes, append `-dirty`.

    Outside a Git repository, return "".
    """
    return _git(folder, "describe", "--always", "--dirty", "--abbrev=12", "--match=") or ""


def _git(folder: Path, *words: str) -> str | None:
    """Return the output of a git command. If git isn't installed, fails, or times out, return None."""
    try:
        done = subprocess.run(("git", *words), cwd=folder, capture_output=True, text=True, timeout=SECONDS)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None

"""The revision of the code that a job or an image is of."""

import subprocess
from pathlib import Path

SECONDS = 10.0  # for git, which may lie on a slow network


def labels(folder: Path) -> dict[str, str]:
    """`git-revision`, and `git-dirty` where files differ from it; nothing outside of a repository."""
    if not (revision := _git(folder, "rev-parse", "--short=12", "HEAD")):
        return {}
    changed = _git(folder, "status", "--porcelain")
    dirty = {"git-dirty": "unknown" if changed is None else "true"} if changed != "" else {}
    return {"git-revision": revision, **dirty}


def described(folder: Path) -> str:
    """The revision as the label and tag of an image, with `-dirty` where files differ from it; "" outside of git."""
    return _git(folder, "describe", "--always", "--dirty", "--abbrev=12", "--match=") or ""


def _git(folder: Path, *words: str) -> str | None:
    """Return the answer of git, None if there is no git, no repository, no commit, or no answer in time."""
    try:
        done = subprocess.run(("git", *words), cwd=folder, capture_output=True, text=True, timeout=SECONDS)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None

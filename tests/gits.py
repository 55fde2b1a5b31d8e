"""Git repositories that tests make, and commands that must succeed."""

from pathlib import Path

from tests.conftest import run

NAMES = {"GIT_AUTHOR_NAME": "Ada", "GIT_AUTHOR_EMAIL": "ada@example.com"}
ENVIRONMENT = NAMES | {name.replace("AUTHOR", "COMMITTER"): value for name, value in NAMES.items()}


def done(folder: Path, *command: str, **environ: str) -> str:
    """Run a command, which must succeed, and return what it prints."""
    finished = run(folder, *command, **ENVIRONMENT | environ)
    assert finished.returncode == 0, finished.stdout
    return finished.stdout


def commit(folder: Path, message: str) -> str:
    """Commit all of a folder, a repository from then on, and return the commit."""
    done(folder, "git", "init", "--quiet", "--initial-branch", "main")
    done(folder, "git", "add", "--all")
    done(folder, "git", "commit", "--quiet", "--message", message)
    return done(folder, "git", "rev-parse", "HEAD").strip()

"""Defines the project's commands as nox sessions. To list the sessions, run: nox -l.

To run a session, use: nox -s NAME. Arguments after -- go to the session's tool, as in: nox -s tests -- -k cluster
"""

import sys
from pathlib import Path

import nox

nox.options.sessions = ["lint", "types", "tests", "check"]
PYTHON = Path(".venv/Scripts/python.exe" if sys.platform == "win32" else ".venv/bin/python")
INSTALLED = Path(".venv/requirements.txt")
REQUIREMENTS = [Path("requirements", name) for name in ("cpu.txt", "trainer.txt", "laptop.txt")]
CODE = ("trainer", "tests", *sorted(map(str, Path().glob("*.py"))))  # this file, and your organization's rules


def python(session: nox.Session, *arguments: str) -> None:
    """Run Python in .venv, the sessions' shared virtual environment. If necessary, create or update .venv first."""
    wanted = f"# Python {sys.version}\n" + "".join(path.read_text() for path in REQUIREMENTS)
    if not (INSTALLED.exists() and INSTALLED.read_text() == wanted):  # virtualenv contains a recent pip
        session.run(sys.executable, "-m", "virtualenv", "-q", "--clear", "--no-periodic-update", ".venv", external=True)
        for path in REQUIREMENTS:  # one by one, because the first file may set an index for its own packages only
            session.run(str(PYTHON), "-m", "pip", "install", "-qq", "--retries=1", "-r", str(path), external=True)
        INSTALLED.write_text(wanted)
    # After Ctrl-C, the command stops what it started and prints how to continue, which may exceed nox's timeout.
    session.run(str(PYTHON), *arguments, external=True, interrupt_timeout=None)


@nox.session(venv_backend="none")
def lint(session: nox.Session) -> None:
    """Check the code style. To apply ruff's automatic fixes, run: nox -s lint -- --fix."""
    python(session, "-m", "ruff", "check", *session.posargs, *CODE)
    python(session, "-m", "ruff", "format", *([] if session.posargs else ["--check"]), *CODE)


@nox.session(venv_backend="none")
def types(session: nox.Session) -> None:
    """Check the type hints."""
    python(session, "-m", "mypy", *(session.posargs or CODE))


@nox.session(venv_backend="none")
def tests(session: nox.Session) -> None:
    """Run the tests. To skip the tests that train, run: nox -s tests -- -m "not slow"."""
    python(session, "-m", "pytest", *session.posargs)


@nox.session(venv_backend="none")
def check(session: nox.Session) -> None:
    """Check whether Vertex AI would reject the job files."""
    python(session, "-m", "vertex_launch", "check", *(session.posargs or sorted(map(str, Path("jobs").glob("*.yaml")))))


@nox.session(venv_backend="none")
def plan(session: nox.Session) -> None:
    """Print a job's cost and whether reducers cut it. Example: nox -s plan -- jobs/workers.yaml --step-seconds 0.2."""
    python(session, "-m", "vertex_launch", "plan", *(session.posargs or ["jobs/workers.yaml"]))


@nox.session(venv_backend="none")
def local(session: nox.Session) -> None:
    """Run or resume a job on this machine. Example: nox -s local -- jobs/single.yaml --fresh -- --steps 100."""
    python(session, "-m", "vertex_launch", "run", *(session.posargs or ["jobs/workers.yaml", "--max-replicas", "3"]))


@nox.session(venv_backend="none")
def emulate(session: nox.Session) -> None:
    """Emulate Vertex AI for gcloud and the SDK until you press Ctrl-C. Example: nox -s emulate -- --capacity 64."""
    python(session, "-m", "vertex_launch", "emulate", *session.posargs)


@nox.session(venv_backend="none")
def image(session: nox.Session) -> None:
    """Build the image. Pass `cpu` for a small CPU image, `push` to upload the image, or `cloud` to use Cloud Build."""
    python(session, "-m", "vertex_launch", "image", *session.posargs)


@nox.session(venv_backend="none")
def lock(session: nox.Session) -> None:
    """Lock the versions of all packages in the image. To upgrade the versions, run: nox -s lock -- --upgrade."""
    python(session, "-m", "vertex_launch", "lock", "--custom-compile-command=nox -s lock", *session.posargs)


@nox.session(venv_backend="none")
def package(session: nox.Session) -> None:
    """Package the trainer for jobs/prebuilt.yaml, and print the command that uploads it."""
    python(session, "-m", "vertex_launch", "package")


@nox.session(venv_backend="none")
def setup(session: nox.Session) -> None:
    """After confirmation, create Google Cloud resources for jobs. To preview them, run: nox -s setup -- --dry-run."""
    python(session, "-m", "vertex_launch", "setup", *session.posargs)


@nox.session(venv_backend="none")
def submit(session: nox.Session) -> None:
    """Show a job, ask for confirmation, and submit it to Vertex AI. Example: nox -s submit -- jobs/single.yaml."""
    python(session, "-m", "vertex_launch", "submit", *(session.posargs or ["jobs/workers.yaml"]))

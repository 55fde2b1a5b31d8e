"""Everything one does with this project, by name: nox -l lists it, nox -s NAME does it.

What follows a -- goes to the tool of the session: nox -s tests -- -k cluster
"""

import sys
from pathlib import Path

import nox

nox.options.sessions = ["lint", "types", "tests", "check"]
PYTHON = Path(".venv/Scripts/python.exe" if sys.platform == "win32" else ".venv/bin/python")
INSTALLED = Path(".venv/requirements.txt")
REQUIREMENTS = [Path("requirements", name) for name in ("cpu.txt", "trainer.txt", "laptop.txt")]
CODE = ("trainer", "tests", *sorted(map(str, Path().glob("*.py"))))  # this file, and rules of your house


def python(session: nox.Session, *arguments: str) -> None:
    """Run the Python of .venv, which all sessions share, after making .venv or bringing it up to date."""
    wanted = f"# Python {sys.version}\n" + "".join(path.read_text() for path in REQUIREMENTS)
    if not (INSTALLED.exists() and INSTALLED.read_text() == wanted):  # the newest pip takes half the time
        session.run(sys.executable, "-m", "venv", "--clear", "--upgrade-deps", ".venv", external=True)
        for path in REQUIREMENTS:  # one by one: an index that the first may name is not asked for the others
            session.run(str(PYTHON), "-m", "pip", "install", "-qq", "--retries=1", "-r", str(path), external=True)
        INSTALLED.write_text(wanted)
    # After Ctrl-C it ends what it started and says how to go on, which may take longer than nox would wait.
    session.run(str(PYTHON), *arguments, external=True, interrupt_timeout=None)


@nox.session(venv_backend="none")
def lint(session: nox.Session) -> None:
    """Check style; nox -s lint -- --fix mends what it can."""
    python(session, "-m", "ruff", "check", *session.posargs, *CODE)
    python(session, "-m", "ruff", "format", *([] if session.posargs else ["--check"]), *CODE)


@nox.session(venv_backend="none")
def types(session: nox.Session) -> None:
    """Check the type hints."""
    python(session, "-m", "mypy", *(session.posargs or CODE))


@nox.session(venv_backend="none")
def tests(session: nox.Session) -> None:
    """Run the tests; nox -s tests -- -m "not slow" leaves out those that train."""
    python(session, "-m", "pytest", *session.posargs)


@nox.session(venv_backend="none")
def check(session: nox.Session) -> None:
    """Check the job files: what would Vertex AI refuse?"""
    python(session, "-m", "vertex_launch", "check", *(session.posargs or sorted(map(str, Path("jobs").glob("*.yaml")))))


@nox.session(venv_backend="none")
def plan(session: nox.Session) -> None:
    """Say what a job needs and costs, and whether reducers pay: nox -s plan -- jobs/workers.yaml --step-seconds 0.2."""
    python(session, "-m", "vertex_launch", "plan", *(session.posargs or ["jobs/workers.yaml"]))


@nox.session(venv_backend="none")
def local(session: nox.Session) -> None:
    """Run a job on this machine, or resume it: nox -s local -- jobs/single.yaml --fresh -- --steps 100."""
    python(session, "-m", "vertex_launch", "run", *(session.posargs or ["jobs/workers.yaml", "--max-replicas", "3"]))


@nox.session(venv_backend="none")
def emulate(session: nox.Session) -> None:
    """Be a local Vertex AI for gcloud and the SDK, until Ctrl-C: nox -s emulate -- --capacity 64."""
    python(session, "-m", "vertex_launch", "emulate", *session.posargs)


@nox.session(venv_backend="none")
def image(session: nox.Session) -> None:
    """Build the image; cpu takes the small one, push sends it, cloud has Google build it: nox -s image -- cpu push."""
    python(session, "-m", "vertex_launch", "image", *session.posargs)


@nox.session(venv_backend="none")
def lock(session: nox.Session) -> None:
    """Write down all versions that the image installs; nox -s lock -- --upgrade takes the newest that fit."""
    python(session, "-m", "vertex_launch", "lock", "--custom-compile-command=nox -s lock", *session.posargs)


@nox.session(venv_backend="none")
def package(session: nox.Session) -> None:
    """Pack the trainer for jobs/prebuilt.yaml, and say how to send the package to the bucket."""
    python(session, "-m", "vertex_launch", "package")


@nox.session(venv_backend="none")
def setup(session: nox.Session) -> None:
    """Make what jobs need in Google Cloud, after asking; nox -s setup -- --dry-run prints the lines."""
    python(session, "-m", "vertex_launch", "setup", *session.posargs)


@nox.session(venv_backend="none")
def submit(session: nox.Session) -> None:
    """Send a job to Vertex AI; shows what it sends, and asks: nox -s submit -- jobs/single.yaml."""
    python(session, "-m", "vertex_launch", "submit", *(session.posargs or ["jobs/workers.yaml"]))

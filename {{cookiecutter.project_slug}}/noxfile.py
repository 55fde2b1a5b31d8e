"""Everything one does with this project, by name: nox -l lists it, nox -s NAME does it.

All sessions share one environment, .venv, which they make and keep up to date themselves.
What follows a -- goes to the tool of the session: nox -s tests -- -k cluster
"""

import os
import sys
import tomllib
from pathlib import Path

import nox

nox.options.sessions = ["lint", "types", "tests", "check"]

ROOT = Path(__file__).parent
VENV = ROOT / ".venv"
REQUIREMENTS = [ROOT / "requirements" / name for name in ("cpu.txt", "trainer.txt", "laptop.txt")]
# Without vertex_launch where that is a dependency and no folder.
CODE = [name for name in ("trainer", "vertex_launch", "tests", "noxfile.py") if (ROOT / name).exists()]


def python(session: nox.Session, *arguments: str) -> None:
    """Run the Python of .venv, after making .venv or bringing it up to date."""
    executable = VENV / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    wanted = f"# Python {sys.version}\n" + "".join(path.read_text() for path in REQUIREMENTS)
    installed = VENV / "requirements.txt"
    if not (installed.exists() and installed.read_text() == wanted):
        # The newest pip takes half the time of the one that came with Python 3.11.
        session.run(sys.executable, "-m", "venv", "--clear", "--upgrade-deps", str(VENV), external=True)
        # One by one: the first may name an index of its own, which is not asked for what the others need and
        # which, if it cannot be reached, costs no more than one more try.
        for path in REQUIREMENTS:
            session.run(str(executable), "-m", "pip", "install", "-qq", "--retries=1", "-r", str(path), external=True)
        installed.write_text(wanted)
    # After Ctrl-C it ends what it started and says how to go on, which may take longer than nox would wait.
    session.run(str(executable), *arguments, external=True, interrupt_timeout=None)


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
    jobs = session.posargs or [str(path.relative_to(ROOT)) for path in sorted((ROOT / "jobs").glob("*.yaml"))]
    python(session, "-m", "vertex_launch", "check", *jobs)


@nox.session(venv_backend="none")
def plan(session: nox.Session) -> None:
    """Say what a job needs and costs, and whether reducers pay: nox -s plan -- jobs/workers.yaml --step-seconds 0.2."""
    python(session, "-m", "vertex_launch", "plan", *(session.posargs or ["jobs/workers.yaml"]))


@nox.session(venv_backend="none")
def local(session: nox.Session) -> None:
    """Run a job on this machine, or resume it: nox -s local -- jobs/single.yaml --fresh -- --steps 100."""
    default = ["jobs/workers.yaml", "--max-replicas", "3"]
    python(session, "-m", "vertex_launch", "run", *(session.posargs or default))


@nox.session(venv_backend="none")
def emulate(session: nox.Session) -> None:
    """Be a local Vertex AI for gcloud and the SDK, until Ctrl-C: nox -s emulate -- --capacity 64."""
    python(session, "-m", "vertex_launch", "emulate", *session.posargs)


@nox.session(venv_backend="none")
def image(session: nox.Session) -> None:
    """Build the image that vertex.toml names; nox -s image -- push sends it, too."""
    name = tomllib.loads((ROOT / "vertex.toml").read_text())["image"]
    session.run("docker", "build", "--platform", "linux/amd64", "--tag", name, str(ROOT), external=True)
    if "push" in session.posargs:
        session.run("docker", "push", name, external=True)


@nox.session(venv_backend="none")
def package(session: nox.Session) -> None:
    """Pack the trainer for jobs/prebuilt.yaml, and say how to send the package to the bucket."""
    python(session, "-m", "vertex_launch", "package")


@nox.session(venv_backend="none")
def submit(session: nox.Session) -> None:
    """Send a job to Vertex AI; shows what it sends, and asks: nox -s submit -- jobs/single.yaml."""
    python(session, "-m", "vertex_launch", "submit", *(session.posargs or ["jobs/workers.yaml"]))

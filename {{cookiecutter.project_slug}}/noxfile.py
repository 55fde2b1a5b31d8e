"""Everything one does with this project, by name: nox -l lists it, nox -s NAME does it.

All sessions share one environment, .venv, which they make and keep up to date themselves.
What follows a -- goes to the tool of the session: nox -s tests -- -k cluster
"""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import nox

nox.options.sessions = ["lint", "types", "tests", "check"]

ROOT = Path(__file__).parent
VENV = ROOT / ".venv"
REQUIREMENTS = [ROOT / "requirements" / name for name in ("cpu.txt", "trainer.txt", "laptop.txt")]
CODE = ("trainer", "tests", "noxfile.py")

NO_IMAGE = 'vertex.toml has no line image = "...", and VERTEX_IMAGE is not set'
NO_ENGINE = "there is no docker and no podman here; nox -s image -- cloud has Google build it"
DOCKER = "gcr.io/cloud-builders/docker"
# Prints in an image what is known of it only once it is built: its plug-in, its NCCL, whether that can use reducers.
LABELS = "; ".join(
    (
        r"dpkg-query --show --showformat='--label=reduction-server=${Package} ${Version}\n' google-reduction-server",
        "pip freeze | sed -n 's/^nvidia-nccl-cu[0-9]*==/--label=nccl=/p'",
        "sed -n '$s/^/--label=reducers=/p' /app/reduction-server.txt",
    )
)


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
    """Build the image that vertex.toml names; -- cpu builds the small one of jobs/smoke.yaml, push sends it, too.

    With -- cloud Google builds and keeps it, without a Docker here. What begins with -- is an option of `docker build`.
    """
    ours = tomllib.loads((ROOT / "vertex.toml").read_text())
    for word in session.posargs:
        if not word.startswith("-") and word not in ("cpu", "push", "cloud"):
            session.error(f"{word} is none of cpu, push and cloud")
    revision = git_revision()
    build = ["build", "--platform=linux/amd64", f"--label=org.opencontainers.image.revision={revision}"]
    names = [ours.get("image") or os.environ.get("VERTEX_IMAGE") or session.error(NO_IMAGE)]
    if revision and not revision.endswith("-dirty"):  # by which it is found again after vertex.toml's tag has moved on
        names.append(f"{re.sub(':[^:/]*$', '', names[0])}:{revision}")
    if "cpu" in session.posargs:
        names = [f"{name}-cpu" for name in names]
        build += ["--build-arg=BASE_IMAGE=ubuntu:24.04", "--build-arg=REQUIREMENTS=cpu.txt", "--label=cuda="]
    build += [*(f"--tag={name}" for name in names), *(word for word in session.posargs if word.startswith("-"))]
    if "cloud" in session.posargs:
        config = Path(session.create_tmp(), "cloudbuild.json")
        config.write_text(json.dumps({"steps": cloud_steps(build, names[0]), "images": names, "timeout": "7200s"}))
        known = ours.get("project") or os.environ.get("VERTEX_PROJECT")  # else that of gcloud's own configuration
        project = [f"--project={known}"] if known else []
        session.run("gcloud", "builds", "submit", *project, f"--config={config}", str(ROOT), external=True)
        return
    engine = shutil.which("docker") or shutil.which("podman") or session.error(NO_ENGINE)
    session.run(engine, *build, str(ROOT), external=True)
    said = str(session.run(engine, *looking(names[0]), external=True, silent=True, success_codes=[0, 1, 2]))
    labels = [line for line in said.splitlines() if line.startswith("--label=")]
    if labels:
        session.run(engine, *again(build), *labels, str(ROOT), external=True)
    for name in names if "push" in session.posargs else ():
        session.run(engine, "push", name, external=True)
    session.log("".join(line.partition("=reducers=")[2] for line in labels))


def looking(name: str) -> list[str]:
    """The words for an engine that print what an image has, as labels."""
    return ["run", "--rm", "--network=none", "--entrypoint=sh", name, "-c", LABELS]


def again(build: list[str]) -> list[str]:
    """The words of the same build for more labels, which `submit` reads; it takes all from the one before."""
    return [*(word for word in build if word not in ("--no-cache", "--pull")), "--quiet"]


def cloud_steps(build: list[str], name: str) -> list[dict[str, object]]:
    """What Google runs: the build, and its labels. Source: Cloud Build, "Build configuration file schema"."""
    look, build_again = (shlex.join(["docker", *words]) for words in (looking(name), again(build)))
    script = f"{look} | xargs --delimiter='\\n' {build_again} ."
    steps: list[dict[str, object]] = [
        {"args": [*build, "."]},
        {"entrypoint": "bash", "args": ["-c", script.replace("$", "$$")]},  # one $ would begin a name of Google's
    ]
    return [{"name": DOCKER, "env": ["DOCKER_BUILDKIT=1"], **step} for step in steps]


def git_revision() -> str:
    """What the image is built from, as its label and tag; `submit` compares it with what is here then."""
    words = ("git", "describe", "--always", "--dirty", "--abbrev=12", "--match=")
    try:
        return subprocess.run(words, cwd=ROOT, capture_output=True, text=True).stdout.strip()
    except OSError:
        return ""


@nox.session
def lock(session: nox.Session) -> None:
    """Write down all versions that the image installs; nox -s lock -- --upgrade takes the newest that fit."""
    session.install("uv")
    locked(session, "lock.txt", "requirements/cuda.txt", "requirements/trainer.txt")
    # What of them belongs to the framework: its layer of the image is built again only where this changes.
    locked(session, "cuda.lock.txt", "requirements/cuda.txt", "--constraint=requirements/lock.txt")


def locked(session: nox.Session, name: str, *requirements: str) -> None:
    """Resolve requirements for the image, whatever this machine is."""
    # The oldest Python that the project runs on: what that takes Ubuntu's newer one takes, too.
    python = ("--python-version=3.11", "--python-platform=x86_64-manylinux_2_28")
    how = ("--quiet", "--no-annotate", "--index-strategy=unsafe-best-match", "--custom-compile-command=nox -s lock")
    words = (*python, *how, f"--output-file=requirements/{name}", *requirements, *session.posargs)
    session.run("uv", "pip", "compile", *words)
    path = ROOT / "requirements" / name
    # Which build of a version it is (2.13.0+cu126) is left to cuda.txt and cpu.txt.
    path.write_text(re.sub(r"\+\w+$", "", path.read_text(), flags=re.MULTILINE))


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

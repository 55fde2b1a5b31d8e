"""Bake projects with the real command, in a home of their own."""

import fcntl
import functools
import gc
import itertools
import os
import shutil
import signal
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PROJECT = "{{cookiecutter.project_slug}}"
LAUNCHER = ROOT / "launcher"
MODULES = os.pathsep.join((str(ROOT), str(LAUNCHER)))  # where Python finds tests, launcher.tests and vertex_launch
LONGEST = "test_frameworks.py"
MINUTES = 90  # until a command is taken for one that hangs
collect_ignore_glob = ["trainer/*"]  # test_frameworks.py lays these tests over a generated project
CACHES = shutil.ignore_patterns("__pycache__", ".*_cache", ".nox", ".venv", ".vertex")

# A shell lets what it starts in the background ignore Ctrl-C; what the tests start, and interrupt, would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)
# Two runs of mypy at once may break a cache that they share: each process of the tests has one of its own.
if "PYTEST_XDIST_WORKER" in os.environ and "MYPY_CACHE_DIR" in os.environ:
    os.environ["MYPY_CACHE_DIR"] += f"/{os.environ['PYTEST_XDIST_WORKER']}"


@dataclass(frozen=True)
class Baked:
    """What one run of the command said and where it was to write."""

    status: int
    stdout: str
    stderr: str
    folder: Path

    @property
    def project(self) -> Path:
        """The generated project; fails with the command's own words when there is none."""
        assert self.status == 0, self.stdout + self.stderr
        (project,) = self.folder.iterdir()
        return project


def copy_template(target: Path) -> Path:
    """The template as a fresh clone has it, without the caches of checks that ran in place."""
    target.mkdir(parents=True)
    shutil.copy(ROOT / "cookiecutter.json", target)
    for folder in ("hooks", "launcher", PROJECT):
        shutil.copytree(ROOT / folder, target / folder, ignore=CACHES)
    return target


def cookiecutter(tmp: Path, *arguments: str, typed: str = "", template: str = "") -> Baked:
    """Run the command in tmp/work/here, with tmp/template or another one; what it may leave behind lies under tmp."""
    here, home, scratch = tmp / "work" / "here", tmp / "home", tmp / "scratch"
    for folder in (here, home, scratch):
        folder.mkdir(parents=True, exist_ok=True)
    # PWD as a shell sets it
    environment = os.environ | {"HOME": str(home), "USERPROFILE": str(home), "TMPDIR": str(scratch), "PWD": str(here)}
    run = subprocess.run(
        [sys.executable, "-m", "cookiecutter", template or str(tmp / "template"), *arguments],
        cwd=here,
        env=environment,
        input=typed,
        capture_output=True,
        encoding="utf-8",
    )
    return Baked(run.returncode, run.stdout, run.stderr, here)


def bake(tmp: Path, **answers: str) -> Baked:
    """Bake the template in tmp with these answers, all parts and defaults for the rest."""
    if not (tmp / "template").exists():
        copy_template(tmp / "template")
    given = {"parts": "all", **answers}
    return cookiecutter(tmp, "--no-input", *(f"{question}={answer}" for question, answer in given.items()))


def line_count(path: Path) -> int:
    """The lines of a Python file, but for the comments that it begins with: a house has a header of its own."""
    lines = path.read_text(encoding="utf-8").splitlines()
    return len([*itertools.dropwhile(lambda line: line.startswith("#") or not line, lines)])


def kept_folder(name: str, otherwise: Path) -> Path:
    """A folder that BAKED keeps from run to run; without BAKED, one in `otherwise`."""
    folder = Path(os.environ.get("BAKED", otherwise)) / name
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def give_environment(project: Path, framework: str, otherwise: Path) -> None:
    """Make the project's .venv, as its own noxfile does. All projects of a framework share one, which is kept."""
    home = kept_environment(framework, otherwise)
    (project / ".venv").symlink_to(home / ".venv")
    shutil.copy(home / "requirements/laptop.txt", project / "requirements")  # which names the folder of its template


def kept_environment(framework: str, otherwise: Path = ROOT / ".nox/baked") -> Path:
    """Return the folder with a framework's .venv, which BAKED keeps for later runs."""
    return environment(framework, kept_folder(f"{framework}-environment", otherwise))


@functools.cache
def environment(framework: str, home: Path) -> Path:
    """The folder `home` with a .venv, made or brought up to date."""
    launcher = tomllib.loads((LAUNCHER / "pyproject.toml").read_text(encoding="utf-8"))
    with (home / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for old in ("template", "work"):
            shutil.rmtree(home / old, ignore_errors=True)
        needs_most = bake(home, framework=framework, example="images").project
        shutil.copy(needs_most / "noxfile.py", home)
        shutil.copytree(needs_most / "requirements", home / "requirements", dirs_exist_ok=True)
        with (home / "requirements/laptop.txt").open("a") as lines:  # an environment that is kept needs these anew, too
            lines.write("".join(f"# {one}\n" for one in launcher["project"]["dependencies"]))
        made = run(home, sys.executable, "-m", "nox", "--session", "types", "--", "--version")
        assert made.returncode == 0, made.stdout
        use_this_launcher(home / ".venv")
    return home


def use_this_launcher(environment: Path) -> None:
    """Have an environment that is kept use this repository's launcher, whatever it was when that was installed."""
    (packages,) = environment.glob("lib/python*/site-packages")
    installed = packages / "vertex_launch"
    if installed.is_symlink():
        installed.unlink()  # this repository may have moved
    else:
        shutil.rmtree(installed)
    installed.symlink_to(LAUNCHER / "vertex_launch")


def add_to_environment(target: Path, shared: Path, *words: str) -> Path:
    """Install what `words` tell pip into an environment of its own upon a shared one; returns its interpreter."""
    interpreter = target / "bin/python"
    if not target.exists():
        made = run(target.parent, sys.executable, "-m", "venv", str(target))
        assert made.returncode == 0, made.stdout
        (own,), (theirs,) = (list(one.glob("lib/python*/site-packages")) for one in (target, shared))
        (own / "shared.pth").write_text(f"{theirs}\n", encoding="utf-8")
    installed = run(target.parent, str(interpreter), "-m", "pip", "install", "--quiet", *words)
    assert installed.returncode == 0, installed.stdout
    return interpreter


def run(folder: Path, *command: str, **environ: str) -> "subprocess.CompletedProcess[str]":
    """Run a command that may take minutes; what it says on either stream is its stdout."""
    return subprocess.run(
        command,
        cwd=folder,
        env=os.environ | environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=60 * MINUTES,
    )


def pytest_configure() -> None:
    """Collect no garbage while modules are imported, because the modules stay."""
    gc.disable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What takes longest first, so that all cores have work until the end: the frameworks, then what is slow."""
    items.sort(key=lambda item: (item.path.name != LONGEST, "slow" not in item.keywords))


def pytest_collection_finish() -> None:
    """Collect garbage again, but never search the imported modules for it."""
    gc.freeze()
    gc.enable()

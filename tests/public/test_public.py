"""Inputs from public reports, and what the launcher must print for each: cases.toml lists them.

`python -m tests.public` prints the same as a table.
"""

import os
import shutil
import subprocess
import sys
import tomllib
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from launcher.tests.running import SOURCE
from launcher.tests.vertex import service
from tests.conftest import environment, kept_folder

HERE = Path(__file__).parent
INPUTS = HERE / "cases"  # where a file says CASES, the path of this folder is meant
SETTINGS = """project = "my-project"
region = "us-central1"
bucket = "my-bucket"
image = "image:1"
[env]
PYTHONPATH = true
"""
SECONDS = 600  # after which a command counts as one that hangs


@dataclass(frozen=True)
class Case:
    """One command on one input, and what it must print and must not print."""

    folder: str
    command: str  # of vertex-launch; or `python FILE`, a client of the service
    code: int = 0  # -1: any, because a chief that ends first ends the job
    prints: list[str] = field(default_factory=list)
    omits: list[str] = field(default_factory=list)
    framework: str = ""  # whose environment runs it: pytorch or tensorflow

    def __str__(self) -> str:
        return f"{self.folder}: {self.command}"

    def faults(self, done: "subprocess.CompletedProcess[str]") -> list[str]:
        """Name what is not as it must be: the exit code, and texts that are missing or too many."""
        wrong = [] if self.code in (done.returncode, -1) else [f"exit code {done.returncode}"]
        wrong += [text for text in self.prints if text not in done.stdout]
        return wrong + [text for text in self.omits if text in done.stdout]


def cases() -> list[Case]:
    """Return the cases of cases.toml."""
    return [Case(**one) for one in tomllib.loads((HERE / "cases.toml").read_text(encoding="utf-8"))["case"]]


def outcome(case: Case, tmp: Path) -> "subprocess.CompletedProcess[str]":
    """Run the command in a copy of the input; stdout holds both streams."""
    shutil.copytree(INPUTS, tmp / "cases")
    for file in filter(Path.is_file, (tmp / "cases").rglob("*")):
        file.write_text(file.read_text(encoding="utf-8").replace("CASES", str(tmp / "cases")), encoding="utf-8")
    folder = tmp / "cases" / case.folder
    (folder / "vertex.toml").write_text(SETTINGS, encoding="utf-8")
    python = sys.executable
    if case.framework:
        home = environment(case.framework, kept_folder(f"{case.framework}-environment", tmp))
        python = str(home / ".venv/bin/python")
    program, *words = case.command.split()
    if program != "python":
        return _run(folder, python, "-m", "vertex_launch", program, *words)
    with service(tmp) as vertex:
        return _run(folder, python, *words, ENDPOINT=vertex.endpoint, STORAGE_EMULATOR_HOST=vertex.endpoint)


def _run(folder: Path, *command: str, **environ: str) -> "subprocess.CompletedProcess[str]":
    path = os.pathsep.join((str(Path(command[0]).parent), os.environ["PATH"]))
    env = {**os.environ, "PYTHONPATH": str(SOURCE), "PATH": path, **environ}
    pipe, both = subprocess.PIPE, subprocess.STDOUT
    return subprocess.run(command, cwd=folder, env=env, text=True, timeout=SECONDS, stdout=pipe, stderr=both)


@pytest.mark.slow
@pytest.mark.proof
@pytest.mark.parametrize("case", cases(), ids=str)
def test_the_launcher_prints_what_a_reader_of_the_report_needs(case: Case, tmp_path: Path) -> None:
    done = outcome(case, tmp_path)
    print(done.stdout)
    assert case.faults(done) == []


def test_every_input_is_tried() -> None:
    assert {path.name for path in INPUTS.glob("*/")} == {Path(case.folder).parts[0] for case in cases()}

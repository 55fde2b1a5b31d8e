"""The rooms cluster/ and vertex/ of the trainer can be copied without the rest; no room imports the loop above it."""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import PROJECT, ROOT

ROOMS = ("cluster", "vertex")
FRAMEWORKS = {"torch", "tensorflow", "keras"}
TAKE_A_FRAMEWORK = {"processes.py", "preemption.py", "world.py", "devices.py", "run.py"}
LIBRARIES = {"psutil", "rich"}
BELOW_THE_LOOP = ("parallel", "checkpoints", "reports", "cluster", "vertex")
OVERLAYS = ("frameworks/pytorch", "frameworks/tensorflow")


def files() -> list[Path]:
    """The files of both rooms, of both frameworks."""
    roots = [ROOT / PROJECT / overlay / "trainer" for overlay in ("", *OVERLAYS)]
    return [file for root in roots for room in ROOMS for file in sorted((root / room).rglob("*.py"))]


def imported(file: Path) -> Iterator[str]:
    """The modules that a file imports, anywhere in it, by their whole names."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{'.' * node.level}{node.module}.{alias.name}" for alias in node.names)


def is_of_the_rooms(module: str) -> bool:
    return module.startswith(tuple(f"trainer.{room}." for room in ROOMS))


def test_the_rooms_have_files() -> None:
    names = {f"{file.parent.name}/{file.name}" for file in files()}
    assert {"cluster/spec.py", "cluster/run.py", "cluster/rollcall.py", "vertex/reducers.py"} <= names


@pytest.mark.parametrize("file", files(), ids=lambda file: str(file.relative_to(ROOT / PROJECT)))
def test_a_file_of_the_rooms_imports_nothing_of_the_rest(file: Path) -> None:
    modules = [*imported(file)]
    assert [name for name in modules if name.partition(".")[0] == "trainer" and not is_of_the_rooms(name)] == []
    foreign = {name.partition(".")[0] for name in modules} - sys.stdlib_module_names - {"trainer"}
    assert foreign <= LIBRARIES | (FRAMEWORKS if file.name in TAKE_A_FRAMEWORK else set())


def test_vertex_imports_nothing_of_cluster_which_stands_on_it() -> None:
    upwards = [file for file in files() if any(name.startswith("trainer.cluster") for name in imported(file))]
    assert [file.name for file in upwards if file.parent.name == "vertex"] == []


@pytest.mark.parametrize("overlay", ["", *OVERLAYS])
def test_nothing_below_the_loop_imports_it(overlay: str) -> None:
    root = ROOT / PROJECT / overlay / "trainer"
    below = [file for room in BELOW_THE_LOOP for file in sorted((root / room).rglob("*.py"))]
    assert [file for file in below if "trainer.train" in imported(file)] == []

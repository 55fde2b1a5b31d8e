"""The rooms cluster/ and vertex/ of the trainer can be copied without the rest; no import climbs, and none circles."""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import PROJECT, ROOT

ROOMS = ("cluster", "vertex")
FRAMEWORKS = {"torch", "tensorflow", "keras"}
TAKE_A_FRAMEWORK = {"processes.py", "preemption.py", "world.py", "devices.py", "run.py", "quorum_server.py"}
LIBRARIES = {"psutil", "rich"}
BELOW_THE_LOOP = ("parallel", "checkpoints", "reports", "cluster", "vertex")
OVERLAYS = ("frameworks/pytorch", "frameworks/tensorflow")


def files() -> list[Path]:
    """The files of both rooms, of both frameworks, with those of parts."""
    overlays = ("", "parts", *OVERLAYS, *(f"{one}/parts" for one in OVERLAYS))
    roots = [ROOT / PROJECT / overlay / "trainer" for overlay in overlays]
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


def modules(overlay: str) -> dict[str, Path]:
    """The files of a bake's trainer, with the images as its example, by their modules' names."""
    example = f"examples/images/{overlay}"
    folders = ("", "parts", overlay, f"{overlay}/parts", "examples/images", example)
    roots = [ROOT / PROJECT / folder / "trainer" for folder in folders]
    names = {file.relative_to(root).with_suffix(""): file for root in roots for file in root.rglob("*.py")}
    return {".".join(("trainer", *name.parts)).removesuffix(".__init__"): file for name, file in names.items()}


def loaded(file: Path) -> Iterator[str]:
    """What a file imports by a text, as far as it can be read: a module, or a folder and a dot for any in it."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call) and node.args:
            function, name = ast.unparse(node.func), ast.unparse(node.args[0]).strip("f'\"").partition("{")[0]
            if function.endswith("import_module"):
                yield name


def graph(overlay: str) -> dict[str, set[str]]:
    """The modules of a bake's trainer, with those that each imports or loads, anywhere in it."""
    known = modules(overlay)
    edges: dict[str, set[str]] = {}
    for module, file in known.items():
        # `from trainer.x import y` imports the module y of the folder x, or a name of the module x.
        names = {name if name in known else name.rpartition(".")[0] for name in imported(file)}
        names |= {
            name
            for load in loaded(file)
            for name in known
            if name == load or (load[-1:] == "." and name.startswith(load) and name != module)
        }
        edges[module] = names & known.keys()
    return edges


def circle(edges: dict[str, set[str]]) -> list[str]:
    """The first circle of imports, of any length; empty if there is none."""
    done: set[str] = set()

    def visit(module: str, way: list[str]) -> list[str]:
        if module in way:
            return [*way[way.index(module) :], module]
        if module in done:
            return []
        found = next(filter(None, (visit(other, [*way, module]) for other in sorted(edges[module]))), [])
        done.add(module)
        return found

    return next(filter(None, (visit(module, []) for module in sorted(edges))), [])


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_imports_of_the_trainer_make_no_circle(overlay: str) -> None:
    edges = graph(overlay)
    assert "trainer.parallel.choice" in edges["trainer.task"]
    assert len([name for name in edges["trainer.parallel.choice"] if name.startswith("trainer.parallel.")]) > 3
    assert circle(edges) == []


def test_a_circle_of_any_length_is_found() -> None:
    assert circle({"a": {"b"}, "b": {"c", "d"}, "c": set(), "d": {"e"}, "e": {"b"}}) == ["b", "d", "e", "b"]
    assert circle({"a": {"b", "c"}, "b": {"c"}, "c": set()}) == []

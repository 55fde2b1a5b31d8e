"""Rooms of the launcher import only what lies below them, and few modules lie outside of a room."""

import ast
from graphlib import TopologicalSorter
from pathlib import Path

import vertex_launch

LAUNCHER = Path(vertex_launch.__file__).parent
# From top to bottom; those of one line import nothing of each other.
FLOORS = (
    ("__main__", "__init__"),
    ("cli",),
    ("cloud", "local"),
    ("rules",),
    ("plan",),
    ("job",),
    ("settings",),
    ("facts",),
    ("untrusted", "program"),
    ("errors",),
)
FLOOR = {room: number for number, rooms in enumerate(FLOORS) for room in rooms}


def imported(file: Path) -> set[tuple[str, ...]]:
    """Return the modules of the launcher that a module imports anywhere, each as the parts of its path below it."""
    nodes = [*ast.walk(ast.parse(file.read_text(encoding="utf-8")))]
    names = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    names |= {f"{node.module}.{one.name}" for node in nodes if isinstance(node, ast.ImportFrom) for one in node.names}
    parts = {tuple(name.split(".")[1:]) for name in names if name.startswith(f"{LAUNCHER.name}.")}
    return {one for one in parts if one != ("__version__",)}


def test_an_import_leads_down_to_another_room() -> None:
    files = {file: file.relative_to(LAUNCHER).with_suffix("").parts[0] for file in LAUNCHER.rglob("*.py")}
    edges = {(room, other[0]) for file, room in files.items() for other in imported(file) if other[0] != room}
    assert {edge for edge in edges if FLOOR[edge[0]] >= FLOOR[edge[1]]} == set()


def test_rooms_of_the_local_vertex_make_no_circle() -> None:
    local = LAUNCHER / "local"
    rooms = {folder.name: {*folder.rglob("*.py")} for folder in local.iterdir() if (folder / "__init__.py").exists()}
    below = {
        room: {one[1] for file in files for one in imported(file) if one[0] == "local" and one[1] in rooms} - {room}
        for room, files in rooms.items()
    }
    TopologicalSorter(below).prepare()


def test_at_most_six_modules_lie_outside_of_a_room() -> None:
    assert len([*LAUNCHER.glob("*.py")]) <= 6

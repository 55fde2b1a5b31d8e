"""The core is a whole project, and parts add files to it: they change none, and nothing of the core needs one."""

import ast
import re
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT, bake, give_environment, run

FRAMEWORKS = ("pytorch", "tensorflow")
ROW = re.compile(r"^\| [^|]+ \| (?P<of>\w+) \| (?P<files>`[^|]+`) \| (`(?P<job>jobs/[^|]+)`)? ?\|$", re.MULTILINE)
# What tells of parts: a table's rows, and an image's block for a library that one of them needs.
TELL = {"pytorch": {"README.md", "Dockerfile"}, "tensorflow": {"README.md"}}
OF_PARTS = {
    "pytorch": ("pipeline", "tensor", "elastic", "horovod"),
    "tensorflow": ("model_parallel", "parameter_server"),
}
LAUNCHER = "requirements/laptop.txt"  # names the folder of its template


@pytest.fixture(scope="module", params=FRAMEWORKS)
def framework(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture(scope="module")
def projects(framework: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A project of the core, and one with all parts."""
    return {
        parts: bake(tmp_path_factory.mktemp(parts), framework=framework, parts=parts).project
        for parts in ("core", "all")
    }


def files(project: Path) -> dict[str, bytes]:
    return {path.relative_to(project).as_posix(): path.read_bytes() for path in project.rglob("*") if path.is_file()}


def listed(framework: str) -> list[str]:
    """The files and folders of all parts that the page lists for a framework."""
    rows = ROW.finditer((ROOT / "docs/yours.md").read_text(encoding="utf-8"))
    own = [row for row in rows if row["of"].lower() in (framework, "both")]
    return [name for row in own for name in (*row["files"][1:-1].split("`, `"), *filter(None, [row["job"]]))]


def test_parts_add_files_and_change_none_but_what_tells_of_them(framework: str, projects: dict[str, Path]) -> None:
    core, whole = (files(project) for project in projects.values())
    assert {name for name in core if core[name] != whole.get(name)} == TELL[framework] | {LAUNCHER}
    added = whole.keys() - core.keys()
    assert added
    assert [name for name in added if not name.startswith(tuple(listed(framework)))] == []
    assert [name for name in listed(framework) if not any(one.startswith(name) for one in added)] == []


def test_nothing_of_the_core_imports_a_part(projects: dict[str, Path]) -> None:
    names = [{path.relative_to(project) for path in project.rglob("*.py")} for project in projects.values()]
    gone = {".".join(name.with_suffix("").parts).removesuffix(".__init__") for name in names[1] - names[0]}
    for name in names[0]:
        assert not gone & imported(projects["core"] / name), name


def imported(file: Path) -> set[str]:
    """The modules that a file imports, anywhere in it."""
    found = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found |= {node.module or "", *(f"{node.module}.{alias.name}" for alias in node.names)}
    return found


@pytest.mark.slow
@pytest.mark.proof
def test_a_core_without_searches_and_googles_images_is_whole_too(framework: str, tmp_path: Path) -> None:
    project = bake(tmp_path, framework=framework, parts="core").project
    give_environment(project, framework, tmp_path)
    for name in ("jobs/tuning.yaml", "tests/test_tuning.py", "jobs/prebuilt.yaml", "tests/test_package.py"):
        (project / name).unlink()
    checked = run(project, sys.executable, "-m", "nox", "--session", "lint", "types", "check", "tests")
    assert checked.returncode == 0, checked.stdout


@pytest.mark.slow
@pytest.mark.proof
def test_a_strategy_that_is_not_there_is_no_choice(framework: str, tmp_path: Path) -> None:
    project = bake(tmp_path, framework=framework, parts="core").project
    give_environment(project, framework, tmp_path)
    python = str(project / ".venv/bin/python")
    for strategy in OF_PARTS[framework]:
        refused = run(project, python, "-m", "trainer.task", "--strategy", strategy)
        assert refused.returncode == 2
        assert f"invalid choice '{strategy}'" in refused.stdout

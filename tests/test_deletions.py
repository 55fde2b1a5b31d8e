"""Parts that docs/yours.md lets a team delete can be deleted: the rest passes its own checks without them."""

import ast
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import ROOT, bake, give_environment, run

ROW = re.compile(r"^\| (?P<part>[^|]+) \| (?P<of>\w+) \| (?P<code>`[^|]+`) \| `(?P<job>jobs/[^|]+)` \|$", re.MULTILINE)
PARTS = {
    "pytorch": ["Pipelines", "Tensor parallelism", "Horovod", "Evaluator", "Searches", "Google's own images"],
    "tensorflow": ["Model parallelism", "Parameter servers", "Evaluator", "Searches", "Google's own images"],
}
NOX = (sys.executable, "-m", "nox", "--session")
EACH = [(framework, part) for framework, parts in PARTS.items() for part in parts]


def parts(project: Path, framework: str) -> dict[str, list[Path]]:
    """Return the files and folders of each part that the page names for a framework."""
    rows = ROW.finditer((ROOT / "docs/yours.md").read_text(encoding="utf-8"))
    own = [row for row in rows if row["of"].lower() in (framework, "both")]
    return {row["part"]: [project / name for name in (*row["code"][1:-1].split("`, `"), row["job"])] for row in own}


def sources(path: Path) -> Iterator[Path]:
    return path.rglob("*.py") if path.is_dir() else iter([path] if path.suffix == ".py" else [])


def delete(paths: list[Path]) -> list[str]:
    """Delete them; returns the strategies that are gone."""
    for path in paths:
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    return [path.stem for path in paths if path.parent.name == "parallel"]


@pytest.mark.parametrize("framework", PARTS)
def test_nothing_that_stays_imports_what_may_be_deleted(framework: str, tmp_path: Path) -> None:
    project = bake(tmp_path, framework=framework).project
    found = parts(project, framework)
    assert [*found] == PARTS[framework]
    for paths in found.values():
        gone = {file for path in paths for file in sources(path)}
        modules = {".".join(file.relative_to(project).with_suffix("").parts).removesuffix(".__init__") for file in gone}
        for file in {*sources(project / "trainer"), *sources(project / "tests")} - gone:
            assert not modules & imported(file), file


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
@pytest.mark.parametrize(("framework", "part"), EACH, ids=[f"{part}-{framework}" for framework, part in EACH])
def test_a_part_that_is_deleted_is_missed_by_no_name_and_no_job(framework: str, part: str, tmp_path: Path) -> None:
    project = bake(tmp_path, framework=framework).project
    check_without(project, framework, parts(project, framework)[part], tmp_path)


@pytest.mark.slow
@pytest.mark.proof
@pytest.mark.parametrize("framework", PARTS)
def test_all_parts_that_are_deleted_leave_a_whole_project_which_trains(framework: str, tmp_path: Path) -> None:
    project = bake(tmp_path, framework=framework).project
    paths = [path for paths in parts(project, framework).values() for path in paths]
    check_without(project, framework, paths, tmp_path)
    tested = run(project, *NOX, "tests")
    assert tested.returncode == 0, tested.stdout


def check_without(project: Path, framework: str, paths: list[Path], tmp_path: Path) -> None:
    """Delete these; the rest needs no name of theirs, has no job for them, and offers no strategy that is gone."""
    gone = delete(paths)
    give_environment(project, framework, tmp_path)
    checked = run(project, *NOX, "lint", "types", "check")
    assert checked.returncode == 0, checked.stdout
    python = str(project / ".venv/bin/python")
    choices = re.search(r"--strategy {(.*?)}", run(project, python, "-m", "trainer.task", "--help").stdout)
    assert choices
    assert not {*gone} & {*choices[1].split(",")}
    for strategy in gone[:1]:  # the others are refused by the same list
        refused = run(project, python, "-m", "trainer.task", "--strategy", strategy)
        assert refused.returncode == 2
        assert f"invalid choice '{strategy}'" in refused.stdout

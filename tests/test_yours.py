"""Recipes of docs/yours.md, followed as they are written: each changes a project that was just baked, and trains it.

Afterwards the project's default sessions pass: lint, types, the quick tests and check.
"""

import ast
import os
import re
import shlex
import shutil
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from tests.conftest import ROOT, add_to_environment, bake, give_environment, run
from tests.loops import FOLDER, Loop, loops

PAGE = (ROOT / "docs/yours.md").read_text(encoding="utf-8")
REPLACED = re.compile(r"^# (\S+\.py), in place of (\w+)\n(def .*)", re.DOTALL)
NEW = re.compile(r"^# (trainer/\S+)\n(.*)", re.DOTALL)
LOSS = re.compile(r" loss ([0-9.]+)")
LOCK = "python -m vertex_launch lock '--custom-compile-command=nox -s lock'"  # as noxfile.py has it
CODE = ("trainer", "tests", "noxfile.py")


@dataclass(frozen=True)
class Recipe:
    title: str
    framework: str
    example: str
    section: str
    loop: Loop | None = None  # which the recipe copies

    def __str__(self) -> str:
        return f"{self.title}: {self.loop}" if self.loop else self.title

    def texts(self, language: str) -> list[str]:
        """Return the blocks of this language."""
        return re.findall(rf"^```{language}\n(.*?)^```$", self.section, re.MULTILINE | re.DOTALL)

    @property
    def adds_libraries(self) -> bool:
        return "requirements/trainer.txt" in "".join(self.texts("diff")) or bool(self.loop and self.loop.requirements)


def recipes() -> list[Recipe]:
    """Return the sections with blocks; the one for any framework with each loop of launcher/docs/loops.md."""
    found = []
    for section in PAGE.split("\n## ")[1:]:
        if mark := re.search(r"<!-- (\w+) (\w+) -->", section):
            recipe = Recipe(section.partition("\n")[0], mark[1], mark[2], section)
            each = [replace(recipe, framework=loop.framework, loop=loop) for loop in loops()]
            found += each if mark[1] == "any" else [recipe]
    return found


def changed(recipe: Recipe, tmp: Path) -> Path:
    """A project with the changes of the recipe."""
    project = bake(tmp, framework=recipe.framework, example=recipe.example).project
    for diff in recipe.texts("diff"):
        (tmp / "change.diff").write_text(diff, encoding="utf-8")
        done = run(project, "git", "apply", str(tmp / "change.diff"))
        assert done.returncode == 0, done.stdout
    for text in recipe.texts("python"):
        if found := REPLACED.match(text):
            replace_function(project / found[1], found[2], found[3])
        elif found := NEW.match(text):
            (project / found[1]).write_text(found[2], encoding="utf-8")
    for paths in re.findall(r"\b[Dd]elete\s(`\S+`(?:\sand\s`\S+`)?)", recipe.section):
        for path in re.findall("`(.+?)`", paths):
            (project / path).unlink()
    if recipe.loop:
        take(recipe.loop, project, recipe.section)
    return project


def replace_function(file: Path, name: str, function: str) -> None:
    """Write this function in place of the one of that name."""
    text = file.read_text(encoding="utf-8")
    (old,) = [node for node in ast.parse(text).body if isinstance(node, ast.FunctionDef) and node.name == name]
    lines = text.splitlines(keepends=True)
    lines[old.lineno - 1 : old.end_lineno] = [function]
    file.write_text("".join(lines), encoding="utf-8")


def take(loop: Loop, project: Path, section: str) -> None:
    """Do with a loop what the section lists: copy it, add its libraries, and set the command of each pool."""
    of_most, of_ray = re.findall(r'`(\["python", [^`]+\])`', section)
    shutil.copy(FOLDER / loop.script, project / "trainer/loop.py")
    if loop.title == "Ray Train":
        shutil.copy(FOLDER / "start_ray.py", project / "trainer")
    with (project / "requirements/trainer.txt").open("a", encoding="utf-8") as file:
        file.writelines(f"{line}\n" for line in loop.requirements)
    job, command = project / "jobs/workers.yaml", of_ray if loop.title == "Ray Train" else of_most
    job.write_text(re.sub(r"(?<=command: )\[.*\]", command, job.read_text(encoding="utf-8")), encoding="utf-8")


def make(recipe: Recipe, tmp: Path) -> Path:
    """A project after the recipe, with an environment that has what it asks for."""
    project = changed(recipe, tmp)
    give_environment(project, recipe.framework, tmp)
    if recipe.adds_libraries:
        install(project)
    for text in recipe.texts("python"):
        if not (REPLACED.match(text) or NEW.match(text)):
            done = run(project, ".venv/bin/python", "-c", text)
            assert done.returncode == 0, done.stdout
    return project


def install(project: Path) -> None:
    """Its requirements, in an environment of its own upon the one that projects share."""
    shared = (project / ".venv").resolve()
    (project / ".venv").unlink()
    add_to_environment(project / ".venv", shared, "-r", str(project / "requirements/trainer.txt"))


def followed(project: Path, command: str) -> str:
    """What a command of the page says, run by the project's Python."""
    path = f"{project / '.venv/bin'}{os.pathsep}{os.environ['PATH']}"
    words = shlex.split(LOCK if command == "nox -s lock" else f"{command} --log-every 10")
    done = run(project, *words, PATH=path)
    print(done.stdout)
    assert done.returncode == 0
    return done.stdout


def passes_lint(project: Path) -> None:
    """Assert what `nox -s lint` does, with this environment's ruff of the same version."""
    for words in (("check",), ("format", "--check")):
        done = run(project, sys.executable, "-m", "ruff", *words, "--no-cache", *CODE)
        assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("recipe", [one for one in recipes() if not one.loop], ids=str)
def test_the_changes_of_a_recipe_fit_the_project_and_pass_its_lint(recipe: Recipe, tmp_path: Path) -> None:
    passes_lint(changed(recipe, tmp_path))


@pytest.mark.slow
@pytest.mark.proof
@pytest.mark.parametrize("recipe", recipes(), ids=str)
def test_a_recipe_trains_and_the_projects_own_sessions_pass_then(recipe: Recipe, tmp_path: Path) -> None:
    project = make(recipe, tmp_path)
    said = [followed(project, line) for text in recipe.texts("sh") for line in text.splitlines()]
    losses = [[*map(float, LOSS.findall(one))] for one in said if LOSS.search(one)]
    assert all(one[-1] < one[0] for one in losses)
    assert [one[-1] for one in losses] == pytest.approx([losses[0][-1]] * len(losses), abs=1e-3)
    passes_lint(project)
    jobs = sorted(str(path.relative_to(project)) for path in project.glob("jobs/*.yaml"))
    for words in (("mypy", *CODE), ("vertex_launch", "check", *jobs), ("pytest", "-m", "not slow")):
        done = run(project, ".venv/bin/python", "-m", *words)
        assert done.returncode == 0, done.stdout


def test_every_recipe_has_a_command() -> None:
    assert len(recipes()) >= 10
    assert all(recipe.texts("sh") for recipe in recipes())
    assert all(recipe.texts("diff") or recipe.texts("python") or recipe.loop for recipe in recipes())

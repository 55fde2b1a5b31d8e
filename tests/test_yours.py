"""Recipes of docs/yours.md, followed as they are written: each changes a project that was just baked, and trains it."""

import ast
import os
import re
import shlex
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.conftest import ROOT, bake, give_environment, run

PAGE = (ROOT / "docs/yours.md").read_text(encoding="utf-8")
REPLACED = re.compile(r"^# (trainer/\S+), in place of (\w+)\n(def .*)", re.DOTALL)
HELDOUT, FIRST = re.compile(r"heldout loss ([0-9.]+)"), re.compile(r"step [0-9]+/[0-9]+  loss ([0-9.]+)")


class Recipe(NamedTuple):
    title: str
    framework: str
    example: str
    blocks: list[tuple[str, str]]  # language and text

    def texts(self, language: str) -> list[str]:
        return [text for kind, text in self.blocks if kind == language]


def recipes() -> list[Recipe]:
    found = []
    for section in PAGE.split("\n## ")[1:]:
        title, _, rest = section.partition("\n")
        blocks = re.findall(r"^```(\w+)\n(.*?)^```$", rest, re.MULTILINE | re.DOTALL)
        if blocks:
            ((framework, example),) = re.findall(r"<!-- (\w+) (\w+) -->", rest)
            found.append(Recipe(title, framework, example, blocks))
    return found


def changed(recipe: Recipe, tmp: Path) -> Path:
    """A project with the changes of the recipe."""
    project = bake(tmp, framework=recipe.framework, example=recipe.example).project
    for diff in recipe.texts("diff"):
        (tmp / "change.diff").write_text(diff, encoding="utf-8")
        done = run(project, "git", "apply", str(tmp / "change.diff"))
        assert done.returncode == 0, done.stdout
    for found in filter(None, map(REPLACED.match, recipe.texts("python"))):
        replace(project / found[1], found[2], found[3])
    return project


def replace(file: Path, name: str, function: str) -> None:
    """Write this function in place of the one of that name."""
    text = file.read_text(encoding="utf-8")
    (old,) = [node for node in ast.parse(text).body if isinstance(node, ast.FunctionDef) and node.name == name]
    lines = text.splitlines(keepends=True)
    lines[old.lineno - 1 : old.end_lineno] = [function]
    file.write_text("".join(lines), encoding="utf-8")


def make(recipe: Recipe, tmp: Path) -> Path:
    """A project after the recipe, with an environment that has what it asks for."""
    project = changed(recipe, tmp)
    give_environment(project, recipe.framework, tmp)
    if "requirements/trainer.txt" in "".join(recipe.texts("diff")):
        install(project)
    for text in recipe.texts("python"):
        first, _, rest = text.partition("\n")
        if REPLACED.match(text):
            continue  # that is done
        if first.startswith("# trainer/"):
            (project / first.removeprefix("# ")).write_text(rest, encoding="utf-8")
        else:
            done = run(project, ".venv/bin/python", "-c", text)
            assert done.returncode == 0, done.stdout
    return project


def install(project: Path) -> None:
    """Its requirements, in an environment of its own upon the one that projects share."""
    venv, shared = project / ".venv", (project / ".venv").resolve()
    venv.unlink()
    made = run(project, sys.executable, "-m", "venv", str(venv))
    assert made.returncode == 0, made.stdout
    (own,), (theirs,) = (list(one.glob("lib/python*/site-packages")) for one in (venv, shared))
    (own / "shared.pth").write_text(f"{theirs}\n", encoding="utf-8")
    pip = (str(venv / "bin/python"), "-m", "pip", "install", "--quiet", "-r", "requirements/trainer.txt")
    installed = run(project, *pip)
    assert installed.returncode == 0, installed.stdout


def trained(project: Path, command: str) -> str:
    """What a command of the page says, run by the project's Python."""
    path = f"{project / '.venv/bin'}{os.pathsep}{os.environ['PATH']}"
    done = run(project, *shlex.split(command), "--log-every", "10", PATH=path)
    print(done.stdout)
    assert done.returncode == 0
    return done.stdout


@pytest.mark.parametrize("recipe", recipes(), ids=lambda recipe: recipe.title)
def test_the_changes_of_a_recipe_fit_the_project(recipe: Recipe, tmp_path: Path) -> None:
    changed(recipe, tmp_path)


@pytest.mark.slow
@pytest.mark.proof
@pytest.mark.parametrize("recipe", recipes(), ids=lambda recipe: recipe.title)
def test_a_recipe_trains(recipe: Recipe, tmp_path: Path) -> None:
    project = make(recipe, tmp_path)
    commands = [line for text in recipe.texts("sh") for line in text.splitlines()]
    ends = []
    for said in (trained(project, command) for command in commands):
        ends.append(float(HELDOUT.findall(said)[-1]))
        assert ends[-1] < float(FIRST.findall(said)[0])
    assert ends == pytest.approx([ends[0]] * len(commands), abs=1e-3)


def test_every_recipe_has_a_command() -> None:
    assert len(recipes()) >= 10
    assert all(recipe.texts("sh") and (recipe.texts("diff") or recipe.texts("python")) for recipe in recipes())

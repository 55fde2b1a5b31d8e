"""Writes the tree of a project into docs/project.md: python -m tests.project_tree PYTORCH_PROJECT TENSORFLOW_PROJECT.

A file says itself what it is for, in the first sentence of its docstring or first comment. Of that, the page has the
clauses that both frameworks have in common and that fit into a line.
"""

import ast
import re
import sys
from collections.abc import Iterator, Mapping
from itertools import takewhile
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE, TEMPLATE = ROOT / "docs/project.md", ROOT / "{{cookiecutter.project_slug}}"
FRAMEWORKS = ("PyTorch", "TensorFlow")
COLUMN, WIDEST = 30, 100  # characters
ENVIRONMENTS = re.compile(r"__pycache__|[.]\w+_cache|[.](venv|nox|vertex|git)")
# What files and folders are for that do not say it themselves.
ROWS = {
    ".github/": "What runs on GitHub",
    ".github/workflows/": "Its workflows",
    ".github/workflows/ci.yml": "Lint, types, tests and check on every pull request",
    ".gitignore": "What is not kept in git",
    "LICENSE": "What others may do with the project; without this file, nothing",
    "README.md": "What the project's owner needs in the first week",
    "jobs/": "What to run and on what; the table in the README says when to take which",
    "pyproject.toml": "The package of trainer/, the files that no update touches, and settings of the tools",
    "requirements/": "What is installed, in the image and here",
    "requirements/cuda.lock.txt": "The versions of all that cuda.txt brings; nox -s lock writes it",
    "requirements/lock.txt": "The versions of all that trainer.txt brings; nox -s lock writes it",
    "tests/": "Tests of what the owner may change",
    "tests/test_cluster.py": "Who trains, by CLUSTER_SPEC or TF_CONFIG, and which descriptions are refused",
    "tests/test_config.py": "Flags and their defaults, and values that are refused",
    "tests/test_export.py": "The exported model answers as the trained one",
    "tests/test_storage.py": "Where outputs go, by AIP_* variables, gs:// addresses and mounts",
    "tests/test_telemetry.py": "Log lines, curves and a trial's metric",
}


def tree(projects: Mapping[str, Path]) -> str:
    """Return the tree of these projects, by framework; a line that not all have in common begins with its framework."""
    purposes = {framework: dict(_purposes(project)) for framework, project in projects.items()}
    paths = {path for each in purposes.values() for path in each}
    folders = {path.parent for path in paths}
    lines = []
    for path in sorted(paths, key=lambda path: [(part in folders, part.name) for part in (*path.parents[::-1], path)]):
        label = "  " * (len(path.parts) - 1) + path.name + "/" * (path in folders) + " +" * _is_of_a_part(path)
        texts = _texts({framework: each.get(path) for framework, each in purposes.items()})
        lines += [f"{before:{COLUMN}}{text}".rstrip() for before, text in zip((label, ""), texts, strict=False)]
    return "\n".join(lines) + "\n"


def _is_of_a_part(path: Path) -> bool:
    """Return whether this file, or all of this folder, is of parts alone."""
    places = [TEMPLATE, *TEMPLATE.glob("frameworks/*")]
    return not any((place / path).exists() for place in (*places, *TEMPLATE.glob("examples/*"))) and any(
        (place / "parts" / path).exists() for place in places
    )


def page(text: str, projects: Mapping[str, Path]) -> str:
    """Return the text of docs/project.md with the tree of these projects, its first block."""
    before, fence, rest = text.partition("```text\n")
    return before + fence + tree(projects) + rest[rest.index("```") :]


def _purposes(project: Path) -> Iterator[tuple[Path, str]]:
    """Yield each file and folder, and what it is for; the line of a folder is that of its __init__.py."""
    for path in project.rglob("*"):
        name = path.relative_to(project)
        if any(ENVIRONMENTS.fullmatch(part) for part in name.parts) or name.name == "__init__.py":
            continue
        source = path / "__init__.py" if path.is_dir() else path
        yield name, _purpose(source, f"{name}/" if path.is_dir() else str(name))


def _purpose(file: Path, name: str) -> str:
    """Return what a file is for, without the period; raises SystemExit if neither it nor a row says so."""
    if name in ROWS or (name.endswith("/") and not file.exists()):
        return ROWS.get(name, "")
    text = file.read_text(encoding="utf-8")
    said = ast.get_docstring(ast.parse(text)) if file.suffix == ".py" else _comment(text)
    if not said:
        raise SystemExit(
            f"{name}: nothing says what it is for; begin it with a sentence, or add a row to tests/project_tree.py"
        )
    return re.split(r"[.](?= |$)", " ".join(said.split()), maxsplit=1)[0]


def _comment(text: str) -> str:
    """Return the first comment, without the lines that are for programs."""
    found = re.match(r"(?:#!.*\n|# yaml-language-server.*\n)*((?:#.+\n)+)", text)
    return found[1].replace("#", "") if found else ""


def _texts(purposes: Mapping[str, str | None]) -> list[str]:
    """Return one text if the frameworks' purposes begin alike, otherwise one for each framework that has the file."""
    clauses = [re.split("(?<=[:;,]) ", text) if text is not None else [] for text in purposes.values()]
    if alike := [one[0] for one in takewhile(lambda each: len({*each}) == 1, zip(*clauses, strict=False))]:
        return [_fitting(alike)]
    return [_fitting([f"{name}:", *each]) for name, each in zip(purposes, clauses, strict=True) if each]


def _fitting(clauses: list[str]) -> str:
    """Return as many clauses as fit into a line; dots stand for others."""
    text, fewer = " ".join(clauses).rstrip(":;,"), clauses[:-1]
    while len(text) > WIDEST and fewer[1:]:
        text, fewer = " ".join((*fewer, "...")), fewer[:-1]
    return text


if __name__ == "__main__":
    projects = dict(zip(FRAMEWORKS, map(Path, sys.argv[1:]), strict=True))
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8"), projects), encoding="utf-8")

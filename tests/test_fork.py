"""A fork stays a fork: defaults, header, question and optimizer of a platform team break no test and no merge.

CONTRIBUTING.md, "Fork it", says what a team changes, and in which files.
"""

import json
import re
import shutil
import sys
from pathlib import Path

import pytest

from noxfile import QUICK
from tests.conftest import CACHES, PROJECT, ROOT, cookiecutter, run
from tests.gits import commit, done
from tests.test_docs import address_places, owner_and_name

HEADER = "# Copyright 2026 {{ cookiecutter.author }}\n# For Acme's own use.\n\n"
OURS = "/".join(("acme", "training-template"))  # in parts, since the address may stand in no other file of the fork
RULE = '''"""Rules of our house."""

from vertex_launch.rules import Finding, Findings, Job, RuleContext, rule


@rule("acme-timeout", "error", "documented", "handbook.example.com/training")
def ends_within_a_week(job: Job, context: RuleContext) -> Findings:
    """A job ends within a week."""
    if job.spec.scheduling.timeout.days >= 7:
        yield Finding("scheduling.timeout", "is longer than a week", "write 604800s or less")
'''
SETTINGS = {  # of vertex.toml, where they are comments
    '# [labels]\n# team = "research"\n# cost_center = "4711"\n': (
        '[labels]\nteam = "acme"\ncost_center = "{{ cookiecutter.cost_center }}"\n'
    ),
    '# [rules]\n# image-tag = "error"\n# module = "house_rules.py"\n': (
        '[rules]\nimage-tag = "error"\nmodule = "house_rules.py"\n'
    ),
}
DEFAULTS = {
    "project_name": "Acme Training",
    "gcp_project": "acme-ml",
    "region": "europe-west4",
    "bucket": "acme-data",
    "machine_count": "4",
}
FIRST = {"worker_machine": "a3-highgpu-8g", "license": "MIT"}
# Words of a test that reads the template, or a project that was baked from it.
READS = re.compile(r"\b(project: Path|ROOT|DEFAULTS)\b")


def copy(folder: Path) -> Path:
    """This repository in a folder, without its history."""
    shutil.copytree(ROOT, folder, ignore=lambda where, names: {*CACHES(where, names), ".git", "demo"} & {*names})
    return folder


def fork(folder: Path) -> Path:
    """Change the template in this folder as another organization does."""
    own_questions(folder / "cookiecutter.json")
    (folder / PROJECT / "header.txt").write_text(HEADER, encoding="utf-8")
    for place in address_places():
        change(folder / place, owner_and_name(), OURS)
    change(folder / PROJECT / "frameworks/pytorch/trainer/step/state.py", "optim.AdamW(groups", "optim.Adam(groups")
    (folder / PROJECT / "house_rules.py").write_text(RULE, encoding="utf-8")
    for old, new in SETTINGS.items():
        change(folder / PROJECT / "vertex.toml", old, new)
    return folder


def own_questions(path: Path) -> None:
    """Other defaults, and one more question."""
    answers = json.loads(path.read_text(encoding="utf-8"))
    answers |= DEFAULTS
    for question, choice in FIRST.items():
        answers[question] = sorted(answers[question], key=lambda one: one != choice)
    questions = {"cost_center": "ml-platform"} | answers
    questions["__prompts__"] = {"cost_center": "Who pays?"} | answers["__prompts__"]
    path.write_text(json.dumps(questions, indent=2), encoding="utf-8")


def change(path: Path, old: str, new: str) -> None:
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new), encoding="utf-8")


def readers(house: Path) -> list[str]:
    """The tests that read what a fork changes: the template, a project or a page, and not the launcher alone."""
    others = [*house.glob("launcher/tests/test_*.py"), *house.glob("tests/fuzz/test_*.py")]
    return [*map(str, house.glob("tests/test_*.py")), *(str(file) for file in others if READS.search(file.read_text()))]


@pytest.mark.slow
@pytest.mark.proof
def test_a_fork_with_defaults_of_its_own_passes_the_quick_tests_that_read_them(tmp_path: Path) -> None:
    options = ("-q", "-p", "no:cacheprovider", "-n", "2", "--dist", "loadscope", *QUICK)
    house = fork(copy(tmp_path / "fork"))
    tested = run(house, sys.executable, "-m", "pytest", *options, *readers(house))
    assert tested.returncode == 0, tested.stdout


@pytest.mark.slow
def test_a_merge_needs_no_hand_and_a_new_file_gets_the_header_of_the_fork(tmp_path: Path) -> None:
    upstream = copy(tmp_path / "upstream")
    commit(upstream, "Begin")
    done(tmp_path, "git", "clone", "--quiet", "upstream", "template")
    house = fork(tmp_path / "template")
    commit(house, "Fork")
    (upstream / PROJECT / "trainer/new.py").write_text('"""New upstream."""\n', encoding="utf-8")
    change(
        upstream / PROJECT / "frameworks/pytorch/trainer/step/state.py",
        '"""Defines the training state',
        '"""Defines the state',
    )
    commit(upstream, "Add a file, and change one that the fork has changed")
    done(house, "git", "pull", "--quiet", "--no-rebase", "--no-edit", "origin", "main")
    project = cookiecutter(tmp_path, "--no-input").project
    header = HEADER.replace("{{ cookiecutter.author }}", "The Acme Training authors")
    code = {path: path.read_text(encoding="utf-8") for path in project.rglob("*.py")}
    assert [path for path, text in code.items() if not text.startswith(header)] == []
    assert code[project / "trainer/new.py"] == f'{header}"""New upstream."""\n'
    assert "optim.Adam(groups" in code[project / "trainer/step/state.py"]
    assert '"""Defines the state' in code[project / "trainer/step/state.py"]
    assert not (project / "header.txt").exists()
    for words in (("check",), ("format", "--check")):  # of a project's nox -s lint
        linted = run(project, sys.executable, "-m", "ruff", *words, "--no-cache", ".")
        assert linted.returncode == 0, linted.stdout
    assert [
        path for path in project.rglob("*") if path.is_file() and owner_and_name().encode() in path.read_bytes()
    ] == []

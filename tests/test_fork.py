"""A fork stays a fork: defaults, header, question and optimizer of a platform team break none of the tests.

CONTRIBUTING.md, "Fork it", says what a team changes, and in which files.
"""

import json
import re
import shutil
import sys
from pathlib import Path

import pytest

from tests.conftest import CACHES, PROJECT, ROOT, run

HEADER = "# Copyright 2026 Acme Inc.\n# For Acme's own use.\n\n"
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


def fork(folder: Path) -> Path:
    """The template as another organization has it."""
    shutil.copytree(ROOT, folder, ignore=lambda where, names: {*CACHES(where, names), ".git", "demo"} & {*names})
    own_questions(folder / "cookiecutter.json")
    for path in (folder / PROJECT).rglob("*.py"):
        path.write_text(HEADER + path.read_text(encoding="utf-8"), encoding="utf-8")
    for path in (folder / "README.md", folder / PROJECT / "README.md", folder / "vertex_launch/README.md"):
        path.write_text(
            path.read_text(encoding="utf-8").replace("github.com/org/", "github.com/acme/"), encoding="utf-8"
        )
    change(folder / PROJECT / "frameworks/pytorch/trainer/train.py", "optim.AdamW(groups", "optim.Adam(groups")
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


def readers(tests: Path) -> list[str]:
    """The tests that read what a fork changes: the template, a project or a page, and not the launcher alone."""
    others = [*tests.glob("launch/test_*.py"), *tests.glob("fuzz/test_*.py")]
    return [*map(str, tests.glob("test_*.py")), *(str(file) for file in others if READS.search(file.read_text()))]


@pytest.mark.slow
@pytest.mark.proof
def test_a_fork_with_defaults_of_its_own_passes_the_quick_tests_that_read_them(tmp_path: Path) -> None:
    quick = ("-q", "-p", "no:cacheprovider", "-n", "2", "--dist", "loadscope", "-m", "not slow and not proof")
    house = fork(tmp_path / "fork")
    done = run(house, sys.executable, "-m", "pytest", *quick, *readers(house / "tests"))
    assert done.returncode == 0, done.stdout

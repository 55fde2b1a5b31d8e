"""Answers of cookiecutter: refused in sentences, or taken, and then every file that holds them can be read."""

import functools
import shlex
import tomllib
from pathlib import Path
from typing import Any

import jinja2
import pytest
from cookiecutter.utils import create_env_with_context
from hypothesis import event, given
from hypothesis import strategies as st

from tests.conftest import PROJECT, ROOT
from tests.test_answers import ANSWERS, DEFAULTS, KEPT, REFUSED
from vertex_launch import settings
from vertex_launch.job import spec

JOBS = sorted((ROOT / PROJECT).glob("**/jobs/*.yaml"))
TEXTS = ("project_name", "project_slug", "description", "author", "gcp_project", "bucket")


def answer(question: str) -> st.SearchStrategy[str]:
    """The default, mostly; or a hostile one, or what looks like a right one."""
    hostile = [wrong for asked, wrong in REFUSED if asked == question]
    if isinstance(ANSWERS[question], list):
        return st.sampled_from(ANSWERS[question])
    if question == "region":
        return st.sampled_from([*ANSWERS["_regions"], *hostile])
    text = st.from_regex(r"\A[a-z][a-z0-9-]{4,20}[a-z0-9]\Z") | st.sampled_from(KEPT) | st.text(max_size=30)
    default = [DEFAULTS[question]]  # of a question of a fork's own, which its own hook looks at, nothing else
    return st.sampled_from(default * 12) | (text if question in TEXTS else st.sampled_from(hostile or default))


TYPED = st.fixed_dictionaries({}, optional={question: answer(question) for question in DEFAULTS})


@functools.cache
def environment() -> jinja2.Environment:
    made: jinja2.Environment = create_env_with_context({"cookiecutter": ANSWERS})
    return made


@functools.cache
def template(text: str) -> jinja2.Template:
    return environment().from_string(text)


def rendered(path: Path, answers: dict[str, Any]) -> str:
    return template(path.read_text(encoding="utf-8")).render(cookiecutter=answers)


def answered(typed: dict[str, str]) -> dict[str, Any]:
    """All variables of the template, as cookiecutter makes them of what was typed."""
    answers: dict[str, Any] = {"_template": "template"}
    for name, raw in ANSWERS.items():
        value = typed.get(name, raw[0] if isinstance(raw, list) else raw)
        is_text = isinstance(value, str) and name not in typed
        answers[name] = template(value).render(cookiecutter=answers) if is_text else value
    return answers


def hook(answers: dict[str, Any]) -> dict[str, Any]:
    """The names of the hook, once it has these answers."""
    names: dict[str, Any] = {"__name__": "hook"}
    exec(rendered(ROOT / "hooks/pre_gen_project.py", answers), names)
    return names


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("project")


@given(TYPED, st.sampled_from(JOBS))
def test_any_answers(folder: Path, typed: dict[str, str], job: Path) -> None:
    answers = answered(typed)
    names = hook(answers)
    told = names["ANSWERS"] | {"project_slug": names["ANSWERS"]["__typed_slug"]}
    if findings := names["findings"](told):
        event("refused")
        assert all(question in DEFAULTS and len(fault.splitlines()) == 1 for question, fault in findings)
        assert shlex.split(names["command"](told, {question for question, _ in findings}))[0] == "cookiecutter"
        return
    event("taken")
    project = tomllib.loads(rendered(ROOT / PROJECT / "pyproject.toml", answers))["project"]
    assert (project["description"], project["authors"]) == (answers["description"], [{"name": answers["author"]}])
    (folder / "vertex.toml").write_text(rendered(ROOT / PROJECT / "vertex.toml", answers), encoding="utf-8")
    assert settings.load(folder / "vertex.toml").bucket == answers["bucket"]
    (folder / "job.yaml").write_text(rendered(job, answers), encoding="utf-8")
    assert spec.load(folder / "job.yaml").spec

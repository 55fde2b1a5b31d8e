"""Every answer is either refused in a sentence, with nothing left on disk, or survives into every format."""

import json
import shlex
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.conftest import PROJECT, ROOT, Baked, bake, cookiecutter, copy_template

PROBES = {
    "probe.toml": 'text = "{{ cookiecutter.__description }}"\n',
    "probe.yaml": 'text: "{{ cookiecutter.__description }}"\n',
    "probe.json": '{"text": "{{ cookiecutter.__description }}"}\n',
}
READERS: dict[str, Callable[[str], Any]] = {
    "probe.toml": tomllib.loads,
    "probe.yaml": yaml.safe_load,
    "probe.json": json.loads,
}

ANSWERS = json.loads((ROOT / "cookiecutter.json").read_text(encoding="utf-8"))
# Question -> its default: of a choice the first.
DEFAULTS = {
    question: answer[0] if isinstance(answer, list) else answer
    for question, answer in ANSWERS.items()
    if not question.startswith("_")
}

REFUSED = [
    ("project_slug", "a/b"),
    ("project_slug", "../x"),
    ("project_slug", "../../x/y"),
    ("project_slug", ""),
    ("project_slug", "."),
    ("project_slug", ".."),
    ("project_slug", "~"),
    ("project_slug", "My_Project"),
    ("project_slug", "my project"),
    ("project_slug", "my.project"),
    ("project_slug", "my--project"),
    ("project_slug", "-project"),
    ("project_slug", "project-"),
    ("project_slug", "1st-project"),
    ("project_slug", "x"),
    ("project_slug", "x" * 41),
    ("project_slug", "x" * 4000),
    ("project_slug", "two\nlines"),
    ("project_slug", "проект"),
    ("project_name", ""),
    ("project_name", "  "),
    ("project_name", "two\nlines"),
    ("project_name", "bell\a"),
    ("description", "escape \x1b[31m"),
    ("description", "separator \u2028"),
    ("description", "not UTF-8: \udcff"),
    ("author", ""),
    ("author", "tab\tbed"),
    ("gcp_project", ""),
    ("gcp_project", "short"),
    ("gcp_project", "My-Project"),
    ("gcp_project", "my-project-"),
    ("gcp_project", "1-project"),
    ("gcp_project", "123456789012"),
    ("gcp_project", "projects/my-project"),
    ("gcp_project", "x" * 31),
    ("bucket", ""),
    ("bucket", "gs://my-bucket"),
    ("bucket", "my-bucket/folder"),
    ("bucket", "My-Bucket"),
    ("bucket", "-bucket"),
    ("bucket", "my..bucket"),
    ("bucket", "ab"),
    ("bucket", "x" * 64),
    ("bucket", "192.168.5.4"),
    ("bucket", "goog-bucket"),
    ("bucket", "my-google-bucket"),
    ("region", ""),
    ("region", "us-central1-a"),
    ("region", "US-CENTRAL1"),
    ("region", "the moon"),
    ("region", "asia-east2"),
    ("machine_count", ""),
    ("machine_count", "0"),
    ("machine_count", "1"),
    ("machine_count", "-2"),
    ("machine_count", "2.5"),
    ("machine_count", "two"),
    ("machine_count", "1e2"),
    ("machine_count", "1001"),
    ("machine_count", "٢"),
    ("machine_count", "9" * 5000),
    ("launcher", "newest"),
    ("launcher", "vertex-launch"),
    ("launcher", "torch==2.13.0"),
    ("launcher", "0.2.0 --extra-index-url=x"),
    ("launcher", "-e ."),
    ("launcher", "nowhere/vertex_launch-0.2.0-py3-none-any.whl"),
    ("launcher", "../vertex-dist-template"),
    ("launcher", "git+https://example.com/a b"),
    ("launcher", "two\nlines"),
]

KEPT = [
    "",
    "'single' and \"double\"",
    "'''three''' and \"\"\"three\"\"\"",
    '"',
    "\\",
    '\\"',
    "C:\\new\\table \\u0041 \\x41",
    "ends in a backslash \\",
    "a: b # c, [d] {e} & *f | >g !h %i @j `k`",
    "}} %} #}",
    "<b>&amp;</b>",
    "$(touch owned) `touch owned` ; touch owned",
    "%s {} {0} $x ${x}",
    "null",
    "Zoë, 数字, цифры, 🤖, 👩‍💻, a\u0301",
]


def at_most_one_of_each_question(answers: list[tuple[str, str]]) -> list[dict[str, str]]:
    """All of them in few bakes, as one that is refused tells all its faults at once."""
    rounds: list[dict[str, str]] = []
    for question, answer in answers:
        free = next((one for one in rounds if question not in one), None)
        if free is None:
            rounds.append(free := {})
        free[question] = answer
    return rounds


def sentences(baked: Baked) -> list[str]:
    """What the refusal says is wrong."""
    assert baked.status == 1
    assert "Traceback" not in baked.stdout + baked.stderr
    *found, introduction, again = baked.stderr.splitlines()
    assert introduction == "To answer the questions again, with your valid answers as defaults, run:"
    assert again.startswith("  cookiecutter ")
    return found


def left_behind(tmp: Path) -> list[str]:
    """What lies around outside the folders that the test itself made and the command's own log."""
    made = {tmp / name for name in ("template", "home", "scratch", "work", "work/here")}
    places = (tmp, tmp / "work", tmp / "work" / "here")
    return [str(path) for place in places for path in place.iterdir() if path not in made]


@pytest.mark.parametrize(
    "answers", at_most_one_of_each_question(REFUSED), ids=lambda answers: f"{len(answers)} answers"
)
def test_an_unusable_answer_is_refused_in_one_sentence(tmp_path: Path, answers: dict[str, str]) -> None:
    good = {"project_slug": "good-slug", "author": "Good Author", "bucket": "good-bucket"}
    said = sentences(bake(tmp_path, **good | answers))
    assert sorted(sentence.partition(": ")[0] for sentence in said) == sorted(answers)
    for sentence in said:
        assert "; for example " in sentence or "; use one of these regions: " in sentence
    assert not left_behind(tmp_path)


def test_an_absolute_slug_makes_no_folder(tmp_path: Path) -> None:
    (sentence,) = sentences(bake(tmp_path, project_slug=f"{tmp_path}/x/y"))
    assert sentence.startswith("project_slug: ")
    assert not left_behind(tmp_path)


WRONG = {"project_slug": "A", "gcp_project": "b", "region": "c", "bucket": "gs://d", "machine_count": "e"}


def test_all_faults_come_at_once_in_the_order_of_the_questions(tmp_path: Path) -> None:
    questions = [sentence.partition(":")[0] for sentence in sentences(bake(tmp_path, **WRONG))]
    assert questions == list(WRONG)


def test_a_refusal_ends_with_the_command_that_asks_again_with_the_good_answers(tmp_path: Path) -> None:
    good = {
        "description": 'Ada\'s "digits" & $HOME',
        "author": "Zoë",
        "framework": "tensorflow",
        "example": "text",
        "parts": "all",
        "license": "MIT",
    }
    refused = bake(tmp_path, **good | WRONG)
    assert len(sentences(refused)) == len(WRONG)
    name, template, *answers = shlex.split(refused.stderr.splitlines()[-1])
    assert (name, template) == ("cookiecutter", str(tmp_path / "template"))
    given = dict(answer.split("=", 1) for answer in answers)
    follows = {"project_slug", *WRONG}  # from what was typed, or refused
    assert given == {question: answer for question, answer in (DEFAULTS | good).items() if question not in follows}
    project = cookiecutter(tmp_path, *answers, typed="\n" * len(DEFAULTS)).project
    assert "MIT License" in (project / "LICENSE").read_text(encoding="utf-8")
    assert tomllib.loads((project / "pyproject.toml").read_text(encoding="utf-8"))["project"]["authors"] == [
        {"name": "Zoë"}
    ]


def test_the_command_that_asks_again_names_the_folder_and_no_default_that_follows_from_a_refused_answer(
    tmp_path: Path,
) -> None:
    copy_template(tmp_path / "template")
    elsewhere = tmp_path / "else where"
    refused = cookiecutter(tmp_path, "--no-input", "--output-dir", str(elsewhere), "gcp_project=My Project")
    (sentence,) = sentences(refused)
    assert sentence.startswith("gcp_project: ")
    name, option, folder, *_, last = shlex.split(refused.stderr.splitlines()[-1])
    assert (name, option, folder) == ("cookiecutter", "--output-dir", str(elsewhere))
    assert last == f"{[*DEFAULTS][-1]}={[*DEFAULTS.values()][-1]}"
    follows = "gcp_project" in DEFAULTS["bucket"]
    assert ("bucket" in refused.stderr.splitlines()[-1]) != follows


@pytest.mark.parametrize("below", [True, False])
def test_the_next_step_leads_into_the_project_wherever_it_was_baked(tmp_path: Path, below: bool) -> None:
    copy_template(tmp_path / "template")
    folder = tmp_path / "work/here/some where" if below else tmp_path / "other"
    baked = cookiecutter(tmp_path, "--no-input", "--output-dir", str(folder))
    (line,) = [line for line in baked.stdout.splitlines() if line.strip().startswith("cd ")]
    (project,) = folder.iterdir()
    shown = f"some where/{project.name}" if below else str(project)
    assert shlex.split(line) == ["cd", shown]


def test_a_mistyped_region_is_answered_with_the_nearest(tmp_path: Path) -> None:
    (sentence,) = sentences(bake(tmp_path, region="europe-west4-b"))
    assert sentence.endswith("for example europe-west4")


def test_a_misspelt_question_is_refused_and_answered_with_the_nearest(tmp_path: Path) -> None:
    baked = bake(tmp_path, framwork="tensorflow", description="a=b", color="red")
    assert (baked.status, baked.stderr) == (
        1,
        "framwork: isn't a question of this template; did you mean framework=tensorflow?\n",
    )
    assert left_behind(tmp_path) == []


def test_a_region_without_the_accelerator_is_answered_with_those_that_have_it(tmp_path: Path) -> None:
    (sentence,) = sentences(bake(tmp_path, region="us-east4", worker_machine="n1-highmem-96"))
    assert sentence.endswith("use one of these regions: asia-east1, europe-west4, us-central1, us-east1, us-west1")


@pytest.mark.parametrize("text", KEPT)
def test_free_text_survives_into_every_format_and_the_license(tmp_path: Path, text: str) -> None:
    template = copy_template(tmp_path / "template")
    for name, content in PROBES.items():
        (template / PROJECT / name).write_text(content, encoding="utf-8")
    owner = text or "An author"  # has to be given
    answers = {"description": text, "author": owner, "project_name": owner, "project_slug": "awkward"}
    project = bake(tmp_path, license="MIT", **answers).project
    for name, read in READERS.items():
        assert read((project / name).read_text(encoding="utf-8"))["text"] == text
    assert f"Copyright (c) 2026 {owner}\n" in (project / "LICENSE").read_text(encoding="utf-8")
    assert not (project / "owned").exists()


@pytest.mark.parametrize("mark", ["{{ 6 * 7 }}", "{% raw %}", "{# hidden #}"])
def test_a_typed_template_mark_is_refused_because_an_update_would_execute_it(tmp_path: Path, mark: str) -> None:
    copy_template(tmp_path / "template")
    (sentence,) = sentences(cookiecutter(tmp_path, typed=typed(description=mark)))
    assert sentence.startswith(f"description: {mark!r}")
    assert not left_behind(tmp_path)


def typed(**answers: str) -> str:
    """The lines that answer these questions, and take the default of the others."""
    return "".join(f"{answers.get(question, '')}\n" for question in DEFAULTS)


def test_answers_can_be_typed(tmp_path: Path) -> None:
    copy_template(tmp_path / "template")
    free = {"project_name": 'Handwritten "Digits"', "author": "Zoë", "region": "europe-west4", "machine_count": "4"}
    chosen = {"framework": "tensorflow", "worker_machine": "n1-highmem-96", "license": "none"}
    numbers = {question: str(ANSWERS[question].index(choice) + 1) for question, choice in chosen.items()}
    project = cookiecutter(tmp_path, typed=typed(**free, **numbers)).project
    assert project.name == "handwritten-digits"
    assert not (project / "LICENSE").exists()
    assert "machineType: n1-highmem-96" in (project / "jobs/workers.yaml").read_text(encoding="utf-8")


@pytest.mark.parametrize("question", ["framework", "worker_machine", "license"])
def test_a_replayed_choice_that_is_not_offered_is_refused(tmp_path: Path, question: str) -> None:
    assert bake(tmp_path, project_slug="first").status == 0
    replay = tmp_path / "home/.cookiecutter_replay/template.json"
    context = json.loads(replay.read_text(encoding="utf-8"))
    context["cookiecutter"] |= {"project_slug": "second", "__typed_slug": "second", question: "jax"}
    replay.write_text(json.dumps(context), encoding="utf-8")
    (sentence,) = sentences(cookiecutter(tmp_path, "--replay"))
    assert sentence.startswith(f"{question}: 'jax' must be one of ")
    assert not (tmp_path / "work/here/second").exists()


def test_a_long_name_still_makes_a_usable_slug(tmp_path: Path) -> None:
    assert len(bake(tmp_path, project_name="A very long name " * 20).project.name) <= 40


def test_a_project_of_a_domain_is_a_folder_in_the_image_name(tmp_path: Path) -> None:
    project = bake(tmp_path, gcp_project="example.com:my-project").project
    settings = tomllib.loads((project / "vertex.toml").read_text(encoding="utf-8"))
    assert settings["project"] == "example.com:my-project"
    assert settings["bucket"] == DEFAULTS["bucket"].replace(
        "{{ cookiecutter.gcp_project.split(':')[-1] }}", "my-project"
    )
    assert "-docker.pkg.dev/example.com/my-project/training/" in settings["image"]

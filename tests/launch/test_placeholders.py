"""Marks of a template that nobody replaced, and what only looks like one."""

from pathlib import Path

import pytest

from tests.launch.casebook import CPU, P0, PROJECT, SETTINGS, alone, edited, write
from vertex_launch import check

PROGRAM = f"{P0}.containerSpec"


def found(folder: Path, **container: object) -> list[str]:
    """The findings of a job with such a container."""
    edits = alone(CPU) | {f"{PROGRAM}.{key}": value for key, value in container.items()}
    return [str(one) for one in check.examine(write(folder, edited(edits)), SETTINGS, PROJECT).findings]


@pytest.mark.parametrize(
    "word",
    [
        "--data=gs://${BUCKET}/data",
        "gs://$BUCKET/data",
        "$PROJECT_ID",
        "--project=<project-id>",
        "--bucket=<YOUR_BUCKET>",
        "--project=<your project>",
        "--project=YOUR_PROJECT_ID",
        "gs://your-bucket/data",
        "--project=[PROJECT_ID]",
        "--bucket={{ bucket_name }}",
        "--bucket={{cookiecutter.bucket}}",
    ],
)
def test_a_mark_that_nobody_replaced_is_named(word: str, tmp_path: Path) -> None:
    (in_args,) = found(tmp_path, command=["python", "mine.py"], args=[word])
    assert "args[0]: " in in_args
    assert "is a mark that nothing replaces; write what it stands for" in in_args
    (in_env,) = found(tmp_path, env=[{"name": "DATA", "value": word}])
    assert "env[0].value: " in in_env


@pytest.mark.parametrize(
    "word",
    [
        "--data=$(DATA)",
        "$$(DATA)",
        "--lr=${oc.env:LR}",
        "hydra.run.dir=${now:%Y}",
        "++path=${data_dir}/x",
        "--token=<image>",
        "<|endoftext|>",
        "[INST] hello [/INST]",
        "[USER]",
        "{{question}}",
        "{'a': {'b': 1}}",
        "price < 3 and budget > 2",
        "--pattern=^a$",
        "gs://my-bucket/my-data",
        "your own data",
    ],
)
def test_what_a_program_may_want_is_no_mark(word: str, tmp_path: Path) -> None:
    assert found(tmp_path, command=["python", "mine.py"], args=[word]) == []


def test_a_shell_replaces_its_variables_and_a_script_of_python_has_its_own(tmp_path: Path) -> None:
    assert found(tmp_path, command=["bash", "-c", "python mine.py --data=${DATA} $HOME"], args=[]) == []
    assert found(tmp_path, command=["python", "-c", "print('$HOME')"], args=[]) == []
    assert len(found(tmp_path, command=["python", "-c", "print()"], args=["${DATA}"])) == 1
    assert len(found(tmp_path, command=["bash", "run.sh"], args=["${DATA}"])) == 1


@pytest.mark.parametrize("value", ["it's", "'a'", r"\\'"])
def test_an_apostrophe_without_a_backslash_is_refused(value: str, tmp_path: Path) -> None:
    (finding,) = found(tmp_path, env=[{"name": "X", "value": value}])
    assert "has an apostrophe" in finding


@pytest.mark.parametrize("value", [r"it\'s", '["a"]', "", "\\"])
def test_a_value_without_a_bare_apostrophe_is_taken(value: str, tmp_path: Path) -> None:
    assert found(tmp_path, env=[{"name": "X", "value": value}]) == []


@pytest.mark.parametrize(
    "image",
    [
        "my image!",
        "gcr.io/<project>/image",
        "gcr.io/${PROJECT}/image:1",
        "gcr.io/PROJECT_ID/Image:1",
        "https://gcr.io/p/image",
        "gs://bucket/image",
        "image:",
        "gcr.io/p//image",
        "image@sha256:12",
        "{{image}}",
    ],
)
def test_what_no_registry_can_have_is_no_image(image: str, tmp_path: Path) -> None:
    (finding,) = found(tmp_path, imageUri=image)
    assert "cannot be the name of an image" in finding


@pytest.mark.parametrize(
    "image",
    ["image:1", "localhost:5000/a/b:1", "gcr.io/example.com/my-project/a__b:v1.0_x", f"Host.io/a@sha256:{'0' * 64}"],
)
def test_any_name_of_an_image_is_one(image: str, tmp_path: Path) -> None:
    assert "cannot be the name of an image" not in " ".join(found(tmp_path, imageUri=image))

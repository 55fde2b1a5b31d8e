"""Marks of a template that nobody replaced, and what only looks like one."""

from pathlib import Path

import pytest

from launcher.tests.casebook import CPU, P0, PROJECT, SETTINGS, alone, edited, write
from vertex_launch.rules import check

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
        "--epochs={{ .Values.epochs }}",
        "{{ ds }}",
        '--run={{ dag_run.conf["run"] }}',
        "--bucket=$_BUCKET",
        "--data=${var.data_path}",
        "--epochs=$(params.epochs)",
        "--tag=<%= tag %>",
        "--tag=<< pipeline.parameters.tag >>",
        "--tag=%BUILD_TAG%",
        "--tag=@BUILD_TAG@",
        '{"Concat": ["--name=", "x"]}',
        '--name={"Ref": "Name"}',
        "--tag=$[[ inputs.tag ]]",
    ],
)
def test_a_mark_that_nobody_replaced_is_named(word: str, tmp_path: Path) -> None:
    (in_args,) = found(tmp_path, command=["python", "mine.py"], args=[word])
    assert "args[0]: " in in_args
    assert "is a placeholder that Vertex AI doesn't replace; write its value" in in_args
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
        "Answer {{question}} briefly",
        "--prompt={{question}}",
        "--name-template={{.Name}}",
        "--tmpl={{.Name}}",
        "--filename={epoch}-{loss:.2f}",
        "--log-format=%(message)s",
        r"--pattern=\d{2}",
        '{"a": {"b": {}}}',
        "%Y-%m-%d",
        "me@example.com",
        "{'a': {'b': 1}}",
        "price < 3 and budget > 2",
        "--pattern=^a$",
        "gs://my-bucket/my-data",
        "your own data",
    ],
)
def test_what_a_program_may_want_is_no_mark(word: str, tmp_path: Path) -> None:
    assert found(tmp_path, command=["python", "mine.py"], args=[word]) == []


@pytest.mark.parametrize(
    "word",
    [
        "{{$}}",
        "--epochs={{$.inputs.parameters['epochs']}}",
        "--epochs={{channel:task=;name=epochs;type=Integer;}}",
        "{{pipelineparam:op=train;name=lr}}",
        "--data={{inputs.parameters.data}}",
        "--tag=${{ github.sha }}",
        '{"IfPresent": {"InputName": "name", "Then": ["--name", "null"]}}',
    ],
)
def test_what_only_its_own_engine_replaces_is_an_error(word: str, tmp_path: Path) -> None:
    for program in (
        {"command": ["python", "mine.py"], "args": [word]},
        {"command": ["sh", "-c", f"python a.py '{word}'"]},
    ):
        (finding,) = found(tmp_path, **{"args": [], **program})
        assert "is a template placeholder that Vertex AI doesn't replace" in finding


@pytest.mark.parametrize("field", ["{data_path}", "%(data)s", "${data}", "$data", "{DATA}"])
def test_a_field_with_the_name_of_its_flag_or_variable_is_named(field: str, tmp_path: Path) -> None:
    for args in ([f"--data={field}"], ["--data", field]):
        assert len(found(tmp_path, command=["python", "mine.py"], args=args)) == 1
    assert len(found(tmp_path, env=[{"name": "DATA", "value": field}])) == 1
    assert found(tmp_path, command=["python", "mine.py"], args=[f"--output={field}", f"data={field}/x"]) == []


def test_in_a_script_only_what_its_shell_leaves_is_named(tmp_path: Path) -> None:
    def named(script: str) -> list[str]:
        return [
            one.partition(": ")[2].split(" is a placeholder")[0]
            for one in found(tmp_path, command=["sh", "-c", script])
        ]

    assert named("python a.py --x={{ x }} --y ${var.y} --bucket=YOUR_BUCKET") == ["{{ x }}", "${var.y}", "YOUR_BUCKET"]
    assert named("python a.py --x=${X} --y $Y ${Y:-1} $((Y + 1)) {1..3}") == []
    assert named("sed 's/{{ x }}/1/' a.yaml > b.yaml; python a.py b.yaml") == []
    assert named("docker inspect --format '{{.Id}}' x") == []


def test_a_shell_replaces_its_variables_and_a_script_of_python_has_its_own(tmp_path: Path) -> None:
    assert found(tmp_path, command=["bash", "-c", "python mine.py --data=${DATA} $HOME"], args=[]) == []
    assert found(tmp_path, command=["python", "-c", "print('$HOME')"], args=[]) == []
    assert len(found(tmp_path, command=["python", "-c", "print()"], args=["${DATA}"])) == 1
    assert len(found(tmp_path, command=["bash", "run.sh"], args=["${DATA}"])) == 1


@pytest.mark.parametrize("value", ["it's", "'a'", r"\\'"])
def test_an_apostrophe_without_a_backslash_is_refused(value: str, tmp_path: Path) -> None:
    (finding,) = found(tmp_path, env=[{"name": "X", "value": value}])
    assert "values with an apostrophe" in finding


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
    assert "isn't a valid image name" in finding


@pytest.mark.parametrize(
    "image",
    ["image:1", "localhost:5000/a/b:1", "gcr.io/example.com/my-project/a__b:v1.0_x", f"Host.io/a@sha256:{'0' * 64}"],
)
def test_any_name_of_an_image_is_one(image: str, tmp_path: Path) -> None:
    assert "isn't a valid image name" not in " ".join(found(tmp_path, imageUri=image))

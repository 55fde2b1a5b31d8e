"""Programs that start a job's processes, and files that they need: what a project's own files decide."""

from dataclasses import replace
from pathlib import Path

import pytest

from tests.launch.casebook import (
    CATALOG,
    CPU,
    GOOD,
    ONE_L4,
    PROJECT,
    SETTINGS,
    alone,
    both,
    edited,
    packaged,
    started,
    write,
)
from vertex_launch import check

LOOP = "import torch\nfrom torch import nn\n"
TOLD = ("--nnodes=$(WORLD_SIZE)", "--node-rank=$(RANK)", "--master-addr=$(MASTER_ADDR)")
DOCKERFILE = """\
FROM base AS tools
COPY --from=tools /bin/x /bin/x
COPY --chown=1:1 requirements/${FILE} \\
    requirements/lock.txt /opt/
# COPY notes.py .
COPY trainer trainer
ADD ["scripts/*.py", "/app/scripts/"]
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A project with a loop of its own, and a Dockerfile that copies all of it."""
    (tmp_path / "mine").mkdir()
    for name in ("train.py", "mine/train.py"):
        (tmp_path / name).write_text(LOOP)
    (tmp_path / "Dockerfile").write_text("COPY . /app\n")
    return tmp_path


def found(folder: Path, edits: dict[str, object], **project: object) -> list[tuple[str, str]]:
    """Codes and cures of what is found in a job beside the files of a project."""
    dockerfile = PROJECT.dockerfile + (folder / "Dockerfile").read_text()
    around = replace(PROJECT, folder=folder, dockerfile=dockerfile, **project)  # type: ignore[arg-type]
    findings = check.examine(write(folder, edited(edits, GOOD)), SETTINGS, around).findings
    return [(one.code, one.cure) for one in findings]


def codes(folder: Path, *words: str) -> list[str]:
    return [code for code, _ in found(folder, started(*words))]


@pytest.mark.parametrize(
    "words",
    [
        ["torchrun", "train.py"],
        ["/opt/venv/bin/torchrun", "--standalone", "--nproc_per_node", "8", "-m", "mine.train"],
        ["python3", "-m", "torch.distributed.run", "--nnodes=2", "train.py", "--node-rank=1", "--master-addr=x"],
        ["accelerate", "launch", "--num_processes=8", "train.py"],
        ["accelerate-launch", "train.py"],
        ["torchrun", "--no-python", "run"],
    ],
)
def test_a_launcher_that_knows_one_machine_is_warned_of(folder: Path, words: list[str]) -> None:
    assert codes(folder, *words) == ["launcher-machines"]


@pytest.mark.parametrize(
    "words",
    [
        ["torchrun", *TOLD, "train.py"],
        ["accelerate", "launch", "--config_file", "eight.yaml", "train.py"],
        ["/bin/bash", "-c", "torchrun train.py"],  # what a shell does is not read
        ["deepspeed", "train.py"],
        ["python", "-c", "import train.py"],
        ["python", "/app/elsewhere/train.py"],  # of a file that is not here, nothing is believed
    ],
)
def test_a_program_that_may_know_the_machines_is_not(folder: Path, words: list[str]) -> None:
    assert codes(folder, *words) == []


def test_flags_of_a_launcher_may_be_variables(folder: Path) -> None:
    env = [{"name": f"PET_{name}", "value": "x"} for name in ("NNODES", "RDZV_ENDPOINT")]
    pools = {f"workerPoolSpecs.{index}.containerSpec.env": env for index in (0, 1)}
    assert found(folder, started("torchrun", "train.py") | pools) == []


def test_one_process_of_accelerate_on_each_machine_finds_the_others_itself(folder: Path) -> None:
    assert "launcher-machines" not in [
        code for code, _ in found(folder, both(ONE_L4) | started("accelerate", "launch", "train.py"))
    ]


def test_a_launcher_on_one_machine_is_right(folder: Path) -> None:
    assert found(folder, alone(CPU, **{"containerSpec.command": ["torchrun", "train.py"]})) == []


@pytest.mark.parametrize("words", [["train.py"], ["-m", "mine.train"]])
def test_python_alone_on_several_gpus_is_warned_of_where_the_script_can_be_read(folder: Path, words: list[str]) -> None:
    assert codes(folder, "python", *words) == ["launcher-gpus"]


@pytest.mark.parametrize(
    "source",
    [
        "import tensorflow as tf\n",  # which has one process for all GPUs of a machine
        f"{LOOP}import subprocess\nsubprocess.run(['torchrun', 'loop.py'])\n",
        f"{LOOP}torch.multiprocessing.spawn(train)\n",
    ],
)
def test_python_alone_is_right_for_a_script_that_uses_all_gpus(folder: Path, source: str) -> None:
    (folder / "train.py").write_text(source)
    assert codes(folder, "python", "train.py") == []


def test_the_project_s_own_launcher_is_the_line_to_write(folder: Path) -> None:
    (folder / "trainer/cluster").mkdir(parents=True)
    (folder / "trainer/cluster/run.py").write_text("import torch\nlaunch()\n")
    told = "write python -m trainer.cluster.run train.py --epochs 3"
    for launcher, code in (("python", "launcher-gpus"), ("torchrun", "launcher-machines")):
        assert found(folder, started(launcher, "train.py", "--epochs", "3")) == [(code, told)]
    assert found(folder, started("torchrun", *TOLD, "-m", "mine.train")) == [
        ("launcher-machines", "write python -m trainer.cluster.run -m mine.train")
    ]
    assert codes(folder, "python", "-m", "trainer.cluster.run", "train.py") == []


def test_a_file_that_the_image_lacks_is_named_with_a_place_for_it(folder: Path) -> None:
    (folder / "trainer").mkdir()
    (folder / "Dockerfile").write_text("COPY trainer trainer\n")
    (cure,) = {cure for _, cure in found(folder, alone(CPU, **{"containerSpec.command": ["python", "train.py"]}))}
    assert cure.startswith("move it into trainer/, which the Dockerfile copies, or add the line COPY train.py train.py")
    job = alone(
        CPU, **{"containerSpec.command": ["python", "-m", "mine.train"], "containerSpec.args": ["--config=./a.yaml"]}
    )
    (folder / "a.yaml").write_text("a: 1\n")
    assert [code for code, _ in found(folder, job)] == ["image-file", "image-file"]
    theirs = alone(CPU, **{"containerSpec.command": ["python", "train.py"], "containerSpec.imageUri": "theirs:1"})
    assert [code for code, _ in found(folder, theirs)] == ["image-differs"]


def test_a_file_that_dockerignore_keeps_out_is_named(folder: Path) -> None:
    job = alone(CPU, **{"containerSpec.command": ["python", "train.py"]})
    (folder / ".dockerignore").write_text("*\n!mine\n")
    assert found(folder, job) == [("image-file", "add the line !train.py to its end")]
    (folder / ".dockerignore").write_text("*.py\n!train.py\n")
    assert found(folder, job) == []


@pytest.mark.parametrize(
    ("file", "copied"),
    [
        ("trainer/task.py", True),
        ("trainers/task.py", False),
        ("scripts/a.py", True),
        ("scripts/more/a.py", False),
        ("requirements/any.yaml", True),
        ("notes.py", False),
    ],
)
def test_what_a_dockerfile_copies_is_read_from_it(folder: Path, file: str, copied: bool) -> None:
    (folder / "Dockerfile").write_text(DOCKERFILE)
    (folder / file).parent.mkdir(parents=True, exist_ok=True)
    (folder / file).write_text("x = 1\n")
    job = alone(CPU, **{"containerSpec.command": ["python", file]})
    assert [code for code, _ in found(folder, job)] == ([] if copied else ["image-file"])


@pytest.mark.parametrize(
    ("line", "ignored"),
    [("mine/", True), ("**/train.py", True), ("train.py", False), ("mine/*.py", True), ("# mine", False), ("", False)],
)
def test_what_dockerignore_names_is_read_from_it(folder: Path, line: str, ignored: bool) -> None:
    (folder / ".dockerignore").write_text(f"c\n{line}\n")
    job = alone(CPU, **{"containerSpec.command": ["python", "-m", "mine.train"]})
    assert [code for code, _ in found(folder, job)] == ["image-file"] * ignored


def test_a_framework_that_the_package_brings_or_that_is_the_same_is_right(folder: Path) -> None:
    image = f"{CATALOG.prebuilt_registries[0]}/pytorch-gpu.2-4.py310:latest"
    job = packaged(executorImageUri=image)
    assert [code for code, _ in found(folder, job, versions={"torch": "2.13.0"})] == ["image-version"]
    assert found(folder, job, versions={"torch": "2.4.1+cpu"}) == found(folder, job) == []
    (folder / "requirements").mkdir()
    (folder / "requirements/prebuilt.txt").write_text("torch>=2.13\n")
    assert found(folder, job, versions={"torch": "2.13.0"}) == []


@pytest.mark.parametrize(
    "base", ["gcr.io/deeplearning-platform-release/tf2-gpu.2-17", "tensorflow/tensorflow:2.17.0-gpu"]
)
def test_the_base_of_our_own_image_is_read_from_the_dockerfile(folder: Path, base: str) -> None:
    (folder / "Dockerfile").write_text(f"ARG BASE={base}\nFROM ${{BASE}}\nCOPY . .\n")
    assert found(folder, alone(CPU), versions={"tensorflow": "2.21.0"}) == [
        ("image-version", "install tensorflow==2.17.* here, or take an image with 2.21.0")
    ]

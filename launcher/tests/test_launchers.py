"""Programs that start a job's processes, and files that they need: what a project's own files decide."""

from dataclasses import replace
from pathlib import Path

import pytest

from launcher.tests.casebook import (
    ACCELERATE,
    CATALOG,
    CPU,
    GONE,
    GOOD,
    ONE_L4,
    P0,
    P1,
    P2,
    PROJECT,
    SETTINGS,
    TWO_L4,
    Part,
    alone,
    both,
    edited,
    packaged,
    started,
    write,
)
from vertex_launch.rules import check

LOOP = "import torch\nfrom torch import nn\n"
ACCELERATOR = "import torch\nfrom accelerate import Accelerator\n"
TRAINER = "from transformers import (\n    AutoModel,\n    Trainer,\n)\n"
LIGHTNING = "import lightning\nTrainer(num_nodes=3)\n"
MACHINES = ("--nnodes=$(WORLD_SIZE)", "--node-rank=$(RANK)", "--master-addr=$(MASTER_ADDR)")
TOLD = ("--nproc-per-node=8", *MACHINES)
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


def codes_behind_bash(folder: Path, script: str, **pool: object) -> list[str]:
    edits = {f"{place}.{key}": value for place in (P0, P1) for key, value in pool.items()}
    return [code for code, _ in found(folder, started("bash", "-c", script) | edits)]


@pytest.mark.parametrize(
    "words",
    [
        ["torchrun", "train.py"],
        ["/opt/venv/bin/torchrun", "--standalone", "--nproc_per_node", "8", "-m", "mine.train"],
        ["python3", "-u", "-m", "torch.distributed.run", "--nnodes=1", "train.py", "--node-rank=1"],
        ["torchrun", "--nnodes", "1", "--rdzv-backend=c10d", "--rdzv-endpoint=$(MASTER_ADDR):2222", "train.py"],
        ["accelerate", "launch", "--num_processes=8", "train.py"],
        ["accelerate-launch", "train.py"],
        ["torchrun", "--no-python", "run"],
        ["deepspeed", "--num_gpus=8", "train.py", "--hostfile=theirs"],
        ["fabric", "run", "--devices=8", "train.py"],
        ["lightning", "run", "model", "--devices=8", "train.py"],
        ["horovodrun", "-np", "8", "python", "train.py"],
        ["mpirun", "--allow-run-as-root", "-np", "32", "-mca", "btl", "^openib", "python", "train.py"],
        ["tini", "--", "env", "A=b", "torchrun", "train.py"],
        ["bash", "-c", "cd /app && torchrun train.py --nnodes=4"],
        ["sh", "-c", "export NNODES=1; exec torchrun --nproc_per_node 8 --nnodes $NNODES train.py"],
        ["deepspeed", "-H", "hosts", "train.py"],  # by ssh, on all machines
        ["horovodrun", "-np", "32", "-H", "a:8,b:8,c:8,d:8", "python", "train.py"],
        [
            "accelerate",
            "launch",
            "--use_deepspeed",
            "--num_machines=4",
            "--num_processes=32",
            *ACCELERATE[1:],
            "train.py",
        ],
    ],
)
def test_a_launcher_that_knows_one_machine_is_warned_of(folder: Path, words: list[str]) -> None:
    assert codes(folder, *words) == ["launcher-machines"]


@pytest.mark.parametrize(
    "words",
    [
        ["torchrun", *TOLD, "train.py"],
        ["torchrun", "--nproc-per-node", "auto", "--nnodes", "$(WORLD_SIZE)", *TOLD[2:], "-m", "mine.train"],
        [
            "torchrun",
            "--nnodes=4:9",
            "--nproc-per-node=gpu",
            "--rdzv-backend=c10d",
            "--rdzv-endpoint=chief:1",
            "train.py",
        ],
        [
            "bash",
            "-c",
            "torchrun --nproc-per-node=$N --nnodes=$WORLD_SIZE --node_rank ${RANK} --master_addr $MASTER_ADDR x",
        ],
        [
            "bash",
            "-c",
            "torchrun --nproc-per-node=8 --nnodes=$((WORLD_SIZE)) --node_rank ${RANK:-0} --master_addr $(chief) x",
        ],
        ["bash", "-c", "if [ $RANK = 0 ]; then torchrun --node-rank=0 a.py; else torchrun --node-rank=1 a.py; fi"],
        [
            "bash",
            "-c",
            '[ -n "$A" ] && M=localhost; torchrun --nproc-per-node=8 --nnodes=4 --node-rank=$RANK --master-addr=$M x',
        ],
        ["accelerate", "launch", "--config_file", "eight.yaml", "train.py"],
        ["accelerate", "launch", "--num_processes=32", *ACCELERATE, "train.py"],
        [
            "deepspeed",
            "--hostfile",
            "hosts",
            "--no_ssh",
            "--node_rank=$(RANK)",
            "--master_addr=$(MASTER_ADDR)",
            "train.py",
        ],
        [
            "fabric",
            "run",
            "--devices=8",
            "--num-nodes=4",
            "--node-rank=$(RANK)",
            "--main-address=$(MASTER_ADDR)",
            "train.py",
        ],
        ["python", "-c", "import train.py"],
        ["python", "/app/elsewhere/train.py"],  # of a file that is not here, nothing is believed
    ],
)
def test_a_program_that_may_know_the_machines_is_not(folder: Path, words: list[str]) -> None:
    assert codes(folder, *words) == []


def test_a_chief_that_starts_all_processes_by_ssh_is_right(folder: Path) -> None:
    both_pools = started("horovodrun", "-np", "32", "-H", "a:8,b:8,c:8,d:8", "python", "train.py")
    assert found(folder, both_pools | {f"{P1}.containerSpec.command": ["/usr/sbin/sshd", "-D"]}) == []


@pytest.mark.parametrize(
    ("words", "cures"),
    [
        (["torchrun", "--nproc-per-node=8", "--nnodes=3", *TOLD[2:], "a.py"], ["--nnodes=$(WORLD_SIZE)"]),
        (["torchrun", *MACHINES, "a.py"], ["--nproc-per-node=8"]),  # without the option it is one
        (["torchrun", *TOLD[:2], "a.py"], ["--node-rank=$(RANK)", "--master-addr=$(MASTER_ADDR)"]),
        (["torchrun", *TOLD[:3], "--master_addr", "[::1]", "a.py"], ["--master-addr=$(MASTER_ADDR)"]),
        (
            ["torchrun", *TOLD[:2], "--rdzv-backend=c10d", "--rdzv_endpoint=127.0.0.1:29400", "a.py"],
            ["--rdzv-endpoint=$(MASTER_ADDR):$(MASTER_PORT)"],
        ),
        (
            ["bash", "-c", f"torchrun {' '.join(TOLD[:3])} --master-addr=$HOSTNAME a.py"],
            ["--master-addr=$(MASTER_ADDR)"],
        ),
        (
            ["bash", "-c", f"torchrun {' '.join(TOLD[:3])} --master-addr $(hostname -i)"],
            ["--master-addr=$(MASTER_ADDR)"],
        ),
        (["accelerate", "launch", *ACCELERATE, "a.py"], ["--num_processes=32"]),
        (
            ["accelerate", "launch", "--num_processes=32", ACCELERATE[0], "--machine_rank", "0", ACCELERATE[2], "a.py"],
            ["--machine_rank=$(RANK)"],
        ),
        (
            ["fabric", "run", "--num-nodes=4", "--node-rank=$(RANK)", "--main-address=$(MASTER_ADDR)", "a.py"],
            ["--devices=8"],
        ),
        (
            ["deepspeed", "--hostfile=h", "--no_ssh", "--num_nodes=2", "--num_gpus=4", "a.py"],
            ["--num_nodes=$(WORLD_SIZE)", "--num_gpus=8"],
        ),
    ],
)
def test_options_unlike_the_job_are_named_with_what_is_right(folder: Path, words: list[str], cures: list[str]) -> None:
    assert found(folder, started(*words)) == [("launcher-options", f"write {cure}") for cure in cures]


def test_options_of_a_launcher_may_be_variables(folder: Path) -> None:
    def told(**env: str) -> list[tuple[str, str]]:
        variables = [{"name": f"PET_{name}", "value": value} for name, value in env.items()]
        pools = {f"{pool}.containerSpec.env": variables for pool in (P0, P1)}
        return found(folder, started("torchrun", "train.py") | pools)

    right = {"NPROC_PER_NODE": "8", "NODE_RANK": "$(RANK)", "MASTER_ADDR": "$(MASTER_ADDR)"}
    assert told(NNODES="4", **right) == told(NNODES="$(WORLD_SIZE)", **right) == []
    assert told(NNODES="2", **right) == [("launcher-options", "write --nnodes=$(WORLD_SIZE)")]
    script = "PET_NNODES=2 torchrun --nproc-per-node=8 --node-rank=$RANK --master-addr=$MASTER_ADDR train.py"
    assert codes_behind_bash(folder, script) == ["launcher-options"]


def test_two_pools_of_one_machine_each_may_have_their_ranks_written_down(folder: Path) -> None:
    def ranked(first: str, second: str) -> list[str]:
        pools = {
            f"{pool}.containerSpec.command": ["torchrun", *TOLD[:2], f"--node-rank={rank}", TOLD[3], "train.py"]
            for pool, rank in ((P0, first), (P1, second))
        }
        edits = {P2: GONE, f"{P1}.replicaCount": 1, f"{P0}.containerSpec.args": [], f"{P1}.containerSpec.args": []}
        return [code for code, _ in found(folder, edits | pools)]

    assert ranked("0", "1") == []
    assert ranked("0", "0") == ["launcher-options"]


def test_a_launcher_on_one_machine_is_right(folder: Path) -> None:
    assert found(folder, alone(CPU, **{"containerSpec.command": ["torchrun", "--nproc-per-node=3", "train.py"]})) == []
    words = ["torchrun", "--standalone", "--nproc-per-node=2", "--master-addr=localhost", "train.py"]
    assert found(folder, alone(TWO_L4, **{"containerSpec.command": words})) == []
    more = alone(TWO_L4, **{"containerSpec.command": ["torchrun", "--nnodes=2", "train.py"]})
    assert {cure for _, cure in found(folder, more)} == {"write --nnodes=1", "write --nproc-per-node=2"}


@pytest.mark.parametrize("words", [["train.py"], ["-m", "mine.train"]])
def test_python_alone_on_several_gpus_is_warned_of_where_the_script_can_be_read(folder: Path, words: list[str]) -> None:
    assert codes(folder, "python", *words) == ["launcher-group"]


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


@pytest.mark.parametrize(
    ("source", "machine", "line", "cure"),
    [
        (ACCELERATOR, CPU, "python train.py", "ACCELERATE_USE_CPU"),
        (TRAINER, CPU, "python -m train", "ACCELERATE_USE_CPU"),
        (
            ACCELERATOR,
            CPU,
            "torchrun --nnodes=2 --node-rank=$RANK --master-addr=$MASTER_ADDR train.py",
            "ACCELERATE_USE_CPU",
        ),
        (ACCELERATOR, CPU, "ACCELERATE_USE_CPU=true python train.py", ""),
        (ACCELERATOR, CPU, "env ACCELERATE_USE_CPU=true python train.py", ""),
        (f"{ACCELERATOR}Accelerator(cpu=True)\n", CPU, "python train.py", ""),
        (ACCELERATOR, CPU, "accelerate launch train.py", "write accelerate launch --cpu train.py"),
        (ACCELERATOR, CPU, "accelerate launch --cpu train.py", ""),
        (ACCELERATOR, ONE_L4, "python train.py --lr 1", "write torchrun --nproc-per-node=1 --nnodes=$(WORLD_SIZE)"),
        (TRAINER, ONE_L4, "python train.py", "write torchrun"),
        (ACCELERATOR, ONE_L4, "LOCAL_RANK=0 python train.py", ""),
        (f"{TRAINER}init_process_group()\n", ONE_L4, "python train.py", ""),
        ("from transformers import AutoModel\n", ONE_L4, "python train.py", ""),
        (LOOP, ONE_L4, "python train.py", ""),
        (
            ACCELERATOR,
            ONE_L4,
            "accelerate launch --mixed_precision=bf16 train.py",
            "launch --mixed_precision=bf16 --multi_gpu",
        ),
        (ACCELERATOR, ONE_L4, "accelerate launch --num_machines=2 --num_processes=2 train.py", "--multi_gpu"),
        (LIGHTNING, ONE_L4, "python train.py", "add env: [{name: NODE_RANK, value: $(RANK)}]"),
        (LIGHTNING, TWO_L4, "python train.py", "NODE_RANK"),
        (LIGHTNING, TWO_L4, "export NODE_RANK=$RANK; python train.py", ""),
        (
            f"{LIGHTNING}class Mine(ClusterEnvironment): ...\nMine = LightningEnvironment()\n",
            ONE_L4,
            "python train.py",
            "",
        ),
        ("dist.init_process_group(init_method='tcp://127.0.0.1:23456')\n", CPU, "python train.py", "MASTER_ADDR"),
        ("os.environ['MASTER_ADDR'] = 'localhost'\n", CPU, "python train.py", "MASTER_ADDR"),
        ("os.environ.update(MASTER_ADDR='localhost')\n", CPU, "python train.py", "MASTER_ADDR"),
        ("os.environ.setdefault('MASTER_ADDR', 'localhost')\n", CPU, "python train.py", ""),
        (
            "if 'MASTER_ADDR' not in os.environ:\n    os.environ['MASTER_ADDR'] = 'localhost'\n",
            CPU,
            "python train.py",
            "",
        ),
        (LOOP, CPU, "export MASTER_ADDR=localhost; python train.py", "MASTER_ADDR"),
        (LOOP, CPU, "MASTER_ADDR=${MASTER_ADDR:-localhost} python train.py", ""),
    ],
)
def test_processes_of_several_machines_form_one_group(
    folder: Path, source: str, machine: Part, line: str, cure: str
) -> None:
    (folder / "train.py").write_text(source)
    edits = both(machine) | {P2: GONE} | started("bash", "-c", line)
    findings = [cure for code, cure in found(folder, edits) if code == "launcher-group"]
    assert len(findings) == bool(cure)
    assert cure in "".join(findings)


def test_the_project_s_own_launcher_is_the_line_to_write(folder: Path) -> None:
    (folder / "trainer/cluster").mkdir(parents=True)
    (folder / "trainer/cluster/run.py").write_text("import torch\nlaunch()\n")
    told = "write python -m trainer.cluster.run train.py --epochs 3"
    for launcher, code in (("python", "launcher-group"), ("torchrun", "launcher-machines")):
        assert found(folder, started(launcher, "train.py", "--epochs", "3")) == [(code, told)]
    assert found(folder, started("torchrun", *TOLD, "-m", "mine.train")) == [
        ("launcher-machines", "write python -m trainer.cluster.run -m mine.train")
    ]
    assert codes(folder, "python", "-m", "trainer.cluster.run", "train.py") == []


def test_a_file_that_the_image_lacks_is_named_with_a_place_for_it(folder: Path) -> None:
    (folder / "trainer").mkdir()
    (folder / "Dockerfile").write_text("COPY trainer trainer\n")
    (cure,) = {cure for _, cure in found(folder, alone(CPU, **{"containerSpec.command": ["python", "train.py"]}))}
    assert cure.startswith("move the file into trainer/, which the Dockerfile copies, or add the line COPY train.py")
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
    assert found(folder, job) == [("image-file", "add the line !train.py at the end of .dockerignore")]
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


IMPORTS = """\
import os, json as j
import numpy as np
from google.cloud import storage
from . import own
import mine.train
import helper
if os.name:
    import in_a_condition
try:
    import optional
except ImportError:
    optional = None


def late():
    import late
"""


@pytest.mark.parametrize(
    ("dockerfile", "requirements", "source", "missing"),
    [
        ("FROM python:3.13\nCOPY requirements.txt /opt/\n", "numpy\ngoogle-cloud-storage\n", IMPORTS, []),
        ("FROM python:3.13\nRUN pip install numpy google_cloud_storage -r requirements.txt\n", "rich", IMPORTS, []),
        ("FROM python:3.13\nRUN pip install -r requirements.txt\n", "rich", IMPORTS, ["numpy", "google-cloud-storage"]),
        ("FROM python:3.13\nRUN pip install -r requirements.txt\n", "matplotlib", "import numpy, PIL, dateutil", []),
        (
            "FROM python:3.13\nRUN pip install -r requirements.txt\n",
            "rich",
            "import sklearn.svm, yaml",
            ["scikit-learn", "pyyaml"],
        ),
        (
            "ARG BASE=nvidia/cuda:13.0\nFROM ${BASE}\nRUN x requirements.txt\n",
            "a==1 --hash=b",
            "import torch",
            ["torch"],
        ),
        ("FROM python:3.13\nRUN pip install -r requirements.txt\n", "not-installed-here", "import torch", []),
        ("FROM python:3.13\nRUN pip install -r requirements.txt\n", "git+https://x/y.git", "import torch", []),
        ("FROM pytorch/pytorch:2.13\nRUN pip install -r requirements.txt\n", "rich", "import torch", []),
        ("FROM python:3.13\nRUN pip install rich\n", "", "import torch", []),  # without files nothing is claimed
        ("FROM python:3.13\nRUN pip install -r requirements.txt\n", "rich", "import (", []),
    ],
)
def test_imports_that_no_requirement_brings_are_named(
    folder: Path, dockerfile: str, requirements: str, source: str, missing: list[str]
) -> None:
    (folder / "Dockerfile").write_text(f"{dockerfile}COPY . .\n")
    (folder / "requirements.txt").write_text(requirements)
    (folder / "helper.py").touch()
    (folder / "run.py").write_text(source)
    for command in (["python", "run.py"], ["bash", "-c", "exec python run.py"]):
        job = alone(CPU, **{"containerSpec.command": command})
        added = [cure for code, cure in found(folder, job) if code == "image-import"]
        assert added == [f"add {name} to requirements.txt" for name in missing]


def test_python_of_the_image_that_does_not_compile_is_named_once(folder: Path) -> None:
    (folder / "Dockerfile").write_text("COPY . .\n")
    for name, source in {
        "model.py": b"x = 1\nreturn x\n",
        "sub/data.py": b"\xff",
        "zero.py": b"\0",
        "escapes.py": b"'\\d'",
        "latin.py": b"# coding: latin-1\n'\xff'",
        "ignored.py": b"(",
        "notes.txt": b"(",
    }.items():
        path = folder / "mine" / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(source)
    (folder / ".dockerignore").write_text("mine/ignored.py\n")
    (folder / "elsewhere.py").write_text("(")  # beside the package, which doesn't import it
    job = alone(CPU, **{"containerSpec.command": ["python", "-m", "mine.train"]})
    names = ("model.py", "sub/data.py", "zero.py")
    assert found(folder, job) == [("image-syntax", f"correct mine/{name}") for name in names]


def test_a_framework_that_the_package_brings_or_that_is_the_same_is_right(folder: Path) -> None:
    image = f"{CATALOG.prebuilt_registries[0]}/pytorch-xla.2-4.py310:latest"
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
        ("image-version", "install tensorflow==2.17.* locally, or use an image with 2.21.0")
    ]

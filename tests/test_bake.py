"""Every framework on every machine bakes into a project that is whole, readable and its own."""

import json
import re
import tomllib
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.version import Version

import vertex_launch
from tests.conftest import PROJECT, ROOT, bake, cookiecutter, line_count

FACTS = ROOT / "launcher/vertex_launch/facts"
QUESTIONS = json.loads((ROOT / "cookiecutter.json").read_text(encoding="utf-8"))
MACHINES = list(QUESTIONS["_machines"])
PARSERS: dict[str, Callable[[str], object]] = {
    ".py": lambda text: compile(text, "baked", "exec", dont_inherit=True),
    ".toml": tomllib.loads,
    ".yaml": lambda text: list(yaml.safe_load_all(text)),
    ".yml": lambda text: list(yaml.safe_load_all(text)),
    ".json": json.loads,
}
OTHER_FRAMEWORK = {
    "pytorch": re.compile(r"tensorflow|keras|\btf\.|MultiWorkerMirrored", re.IGNORECASE),
    "tensorflow": re.compile(r"torch|\bDDP\b", re.IGNORECASE),
}
EXAMPLES = {
    "images": re.compile(r"handwritten|scikit|\bVision|--(patch|noise|classes)", re.IGNORECASE),
    "text": re.compile(r"\bGPT\b|stdlib|bits.per.byte|--context", re.IGNORECASE),
}
GPU_IMAGES = {"pytorch": "pytorch-gpu.", "tensorflow": "tf-gpu."}
MARKS = re.compile(r"(?<!\$)\{\{|\{%|\{#")  # GitHub's own ${{ }} may stay


# The example has nothing to do with the machine.
KINDS = [(f, m, e) for f in OTHER_FRAMEWORK for m in MACHINES for e in EXAMPLES if e == "images" or m == MACHINES[0]]


@pytest.fixture(scope="module", params=KINDS, ids="-".join)
def project(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project for one framework, one machine and one example."""
    framework, machine, example = request.param
    folder = tmp_path_factory.mktemp("baked")
    return bake(folder, framework=framework, worker_machine=machine, example=example).project


@pytest.fixture
def framework(request: pytest.FixtureRequest) -> str:
    """The framework of the project at hand."""
    name: str = request.node.callspec.params["project"][0]
    return name


def texts(project: Path) -> dict[str, str]:
    """Every file of the project, by its path."""
    files = sorted(path for path in project.rglob("*") if path.is_file())
    return {str(path.relative_to(project)): path.read_text(encoding="utf-8") for path in files}


def job(project: Path, name: str) -> Any:
    """One job file, parsed."""
    return yaml.safe_load((project / f"jobs/{name}.yaml").read_text(encoding="utf-8"))


def settings(project: Path) -> Any:
    """The project's vertex.toml."""
    return tomllib.loads((project / "vertex.toml").read_text(encoding="utf-8"))


def ladder(project: Path) -> list[str]:
    """The job files that build on each other, as far as there are any."""
    return [name for name in ("single", "workers", "reduction-server") if (project / f"jobs/{name}.yaml").exists()]


def matches(pattern: re.Pattern[str], project: Path) -> list[str]:
    """Where the pattern is found, as file:line: text, to be read in a failure."""
    lines = ((name, n, line) for name, text in texts(project).items() for n, line in enumerate(text.splitlines(), 1))
    return [f"{name}:{n}: {line.strip()}" for name, n, line in lines if pattern.search(line)]


def test_every_file_parses(project: Path) -> None:
    for name, text in texts(project).items():
        PARSERS.get(Path(name).suffix, str)(text)


def test_its_owner_has_at_most_1800_lines_of_tests(project: Path) -> None:
    assert sum(line_count(path) for path in (project / "tests").rglob("*.py")) <= 1800


def test_a_readme_has_at_most_205_lines(project: Path) -> None:
    assert len(texts(project)["README.md"].splitlines()) <= 205


def test_no_template_mark_is_left(project: Path) -> None:
    assert not matches(re.compile("cookiecutter", re.IGNORECASE), project)
    # Braces in a Python file are its own: it is copied byte for byte.
    assert not [place for place in matches(MARKS, project) if ".py:" not in place]


@pytest.fixture
def example(request: pytest.FixtureRequest) -> str:
    """The example of the project at hand."""
    name: str = request.node.callspec.params["project"][2]
    return name


def test_python_is_copied_byte_for_byte(project: Path, framework: str, example: str) -> None:
    template = ROOT / PROJECT
    overlay = template / "examples" / example
    laid_over = (overlay / "frameworks" / framework, overlay, template / "frameworks" / framework, template)
    parts = [one / part for one in laid_over for part in ("", "parts")]
    for path in project.rglob("*.py"):
        name = path.relative_to(project)
        laid = next(part / name for part in parts if (part / name).exists())
        header = path.read_bytes().removesuffix(laid.read_bytes())
        assert path.read_bytes() == header + laid.read_bytes(), name
        assert not header or (template / "header.txt").exists(), name


def test_framework_and_example_are_laid_in_place_and_the_parts_are_gone(project: Path) -> None:
    assert all((project / f"trainer/{name}.py").exists() for name in ("task", "data", "model"))
    assert not [name for name in ("frameworks", "examples", "parts", "licenses") if (project / name).exists()]


def test_an_example_is_two_files_and_their_tests() -> None:
    models = ("trainer/model.py", "tests/test_model.py")
    of_each = [f"frameworks/{framework}/{name}" for framework in OTHER_FRAMEWORK for name in models]
    for example in EXAMPLES:
        overlay = ROOT / PROJECT / "examples" / example
        files = [path for path in overlay.rglob("*.*") if path.is_file() and path.suffix != ".pyc"]
        found = {path.relative_to(overlay).as_posix() for path in files}
        assert found == {"trainer/data.py", "tests/test_data.py", *of_each}


def test_the_other_framework_leaves_no_trace(project: Path, framework: str) -> None:
    assert matches(OTHER_FRAMEWORK[framework], project) == []


def test_the_other_example_leaves_no_trace(project: Path, example: str) -> None:
    (other,) = EXAMPLES.keys() - {example}
    assert matches(EXAMPLES[other], project) == []


def test_two_examples_differ_in_two_files_their_tests_and_what_is_told_of_them(tmp_path: Path) -> None:
    images, text = (texts(bake(tmp_path / example, example=example, launcher="0.2.0").project) for example in EXAMPLES)
    assert images.keys() == text.keys()
    assert {name for name, content in images.items() if text[name] != content} == {
        *("trainer/data.py", "trainer/model.py", "tests/test_data.py", "tests/test_model.py"),
        *("requirements/trainer.txt", "requirements/lock.txt", "requirements/package.txt", "README.md"),
    }


def test_the_jobs_ask_for_the_chosen_machine(project: Path, request: pytest.FixtureRequest) -> None:
    machine = request.node.callspec.params["project"][1]
    facts = QUESTIONS["_machines"][machine]
    for name in ladder(project):
        for pool in job(project, name)["workerPoolSpecs"][:2]:
            assert pool["machineSpec"] == {
                "machineType": machine,
                "acceleratorType": facts["accelerator"],
                "acceleratorCount": facts["count"],
            }


def test_each_job_repeats_the_one_before_it_and_adds_a_pool(project: Path) -> None:
    pools = [job(project, name)["workerPoolSpecs"] for name in ladder(project)]
    assert [len(each) for each in pools] == [1, 2, 3][: len(pools)]
    assert all(after[: len(before)] == before for before, after in pairwise(pools))


def test_the_evaluator_has_one_gpu_of_the_trainers_kind_and_their_flags(
    project: Path, request: pytest.FixtureRequest
) -> None:
    facts = QUESTIONS["_machines"][request.node.callspec.params["project"][1]]
    chief, workers, gap, evaluator = job(project, "evaluator")["workerPoolSpecs"]
    assert evaluator["machineSpec"] == {
        "machineType": facts["small"],
        "acceleratorType": facts["accelerator"],
        "acceleratorCount": 1,
    }
    assert (gap, evaluator["replicaCount"]) == ({}, 1)
    assert chief["containerSpec"] == workers["containerSpec"]
    program = {"command": ["python", "-m", "trainer.evaluator"]}
    assert evaluator["containerSpec"] == chief["containerSpec"] | program
    assert chief["machineSpec"] == job(project, "workers")["workerPoolSpecs"][0]["machineSpec"]


def test_the_package_runs_in_the_newest_image_that_google_lists(project: Path, framework: str) -> None:
    package = job(project, "prebuilt")["workerPoolSpecs"][0]["pythonPackageSpec"]
    listed = yaml.safe_load((FACTS / "prebuilt.yaml").read_text(encoding="utf-8"))
    days = {name: day for name, day in listed["prebuilt_images"].items() if name.startswith(GPU_IMAGES[framework])}
    newest = max(days, key=lambda name: days[name])
    registry = QUESTIONS["_registries"][QUESTIONS["region"].partition("-")[0]]
    assert package["executorImageUri"] == f"{registry}-docker.pkg.dev/vertex-ai/training/{newest}:latest"
    assert package["executorImageUri"].partition("/")[0] in {
        path.partition("/")[0] for path in listed["prebuilt_registries"]
    }
    name = f"{project.name.replace('-', '_')}-0.1.0.tar.gz"
    assert package["packageUris"] == [f"gs://{settings(project)['bucket']}/{project.name}/packages/{name}"]


def requirements(project: Path) -> dict[str, Requirement]:
    """What the image installs with CUDA, by name."""
    lines = (project / "requirements/cuda.txt").read_text(encoding="utf-8").splitlines()
    wanted = [Requirement(line) for line in lines if not line.startswith(("#", "--"))]
    return {one.name: one for one in wanted}


def test_the_image_has_code_for_the_gpus_of_its_machine(project: Path, request: pytest.FixtureRequest) -> None:
    accelerator = QUESTIONS["_machines"][request.node.callspec.params["project"][1]]["accelerator"]
    dropped = yaml.safe_load((FACTS / "machines.yaml").read_text(encoding="utf-8"))["cuda_dropped"]
    text = (project / "Dockerfile").read_text(encoding="utf-8")
    (cuda,) = re.findall(r'^LABEL cuda="([0-9]+[.][0-9]+)"$', text, re.MULTILINE)
    assert re.search(rf"^ARG BASE_IMAGE=nvidia/cuda:{cuda}[.][0-9]+-base-ubuntu24.04$", text, re.MULTILINE)
    assert not [version for version, kinds in dropped.items() if accelerator in kinds and float(cuda) >= version]


def test_pip_takes_the_pytorch_of_that_cuda_and_no_other(tmp_path: Path) -> None:
    for machine in MACHINES:
        project = bake(tmp_path / machine, framework="pytorch", worker_machine=machine).project
        text = (project / "Dockerfile").read_text(encoding="utf-8")
        torch = requirements(project)["torch"].specifier
        v100 = machine == "n1-highmem-96"
        assert torch.contains("2.13.0+cu126")
        assert torch.contains("2.13.0") != v100  # the ordinary wheel has this version, and CUDA 13
        where = "--extra-index-url https://download.pytorch.org/whl/cu126"
        assert (where in (project / "requirements/cuda.txt").read_text(encoding="utf-8").splitlines()) == v100
        cuda = "12.6" if v100 else "13.0"
        assert f"assert cuda == '{cuda}'" in text  # the build ends if the wheel is of another one
        assert f"cuda-nvcc-{cuda.replace('.', '-')} cuda-cudart-dev-{cuda.replace('.', '-')}" in text
        assert f"CUDA_HOME=/usr/local/cuda-{cuda} " in text


def test_tensorflows_nccl_and_cudnn_do_not_move(tmp_path: Path) -> None:
    wanted = requirements(bake(tmp_path, framework="tensorflow").project)
    # What tensorflow[and-cuda] 2.21.0 asks for, by its metadata.
    asked = {"nvidia-nccl-cu12": "<3.0,>=2.27.7", "nvidia-cudnn-cu12": "<10.0,>=9.3.0.75"}
    for name, range in asked.items():
        (pin,) = wanted[name].specifier
        assert pin.operator == "=="
        assert SpecifierSet(range).contains(pin.version)
    assert Version("2.27") < Version(str(wanted["nvidia-nccl-cu12"].specifier).strip("=")) < Version("2.28")
    assert Version(str(wanted["nvidia-cudnn-cu12"].specifier).strip("=")) < Version("9.11")  # has no code for V100


def test_machines_whose_gpus_have_a_network_of_their_own_have_no_job_with_reducers(
    project: Path, request: pytest.FixtureRequest
) -> None:
    facts = QUESTIONS["_machines"][request.node.callspec.params["project"][1]]
    assert ("reduction-server" in ladder(project)) == (not facts.get("fabric"))


def test_the_settings_and_the_jobs_name_the_same_bucket_and_image(project: Path) -> None:
    ours, workers = settings(project), job(project, "workers")
    prefix = f"gs://{ours['bucket']}/{project.name}/"
    cloud = {"project", "region", "bucket", "image", "service_account"}
    assert ours.keys() >= {*cloud, "launcher", "commands", "env", "prices"}
    assert workers["baseOutputDirectory"]["outputUriPrefix"].startswith(prefix)
    assert {pool["containerSpec"]["imageUri"] for pool in workers["workerPoolSpecs"]} == {ours["image"]}
    assert ours["commands"] == {ours["image"]: ["python", "-m", "trainer.task"]}


@pytest.mark.parametrize(
    ("machine", "count", "reducers"),
    [
        ("n1-highmem-96", 5, 16),  # the documentation's first example
        ("a2-megagpu-16g", 8, 25),  # and its second
        ("a2-highgpu-8g", 2, 7),
        ("a2-highgpu-8g", 3, 10),
        ("g2-standard-24", 2, 2),
        ("g2-standard-24", 1000, 1000),
    ],
)
def test_reducers_match_the_bandwidth_of_the_trainers(tmp_path: Path, machine: str, count: int, reducers: int) -> None:
    project = bake(tmp_path, worker_machine=machine, machine_count=str(count)).project
    pools = job(project, "reduction-server")["workerPoolSpecs"]
    assert [pool["replicaCount"] for pool in pools] == [1, count - 1, reducers]
    assert pools[2].keys() == {"machineSpec", "replicaCount", "containerSpec"}
    assert pools[2]["containerSpec"].keys() == {"imageUri"}


@pytest.mark.parametrize(
    ("machine", "count", "batch"),
    [
        ("a2-highgpu-8g", 2, 96),
        ("a2-highgpu-8g", 5, 120),
        ("a2-megagpu-16g", 8, 128),
        ("g2-standard-24", 2, 96),
    ],
)
def test_every_gpu_gets_the_same_number_of_samples(tmp_path: Path, machine: str, count: int, batch: int) -> None:
    project = bake(tmp_path, worker_machine=machine, machine_count=str(count)).project
    for name in ("single", "workers", "reduction-server"):
        args = job(project, name)["workerPoolSpecs"][0]["containerSpec"]["args"]
        assert args[-2:] == ["--global-batch", str(batch)]


@pytest.mark.parametrize(
    ("region", "place"),
    [("us-west1", "us"), ("northamerica-northeast2", "us"), ("europe-west2", "europe"),
     ("me-central2", "europe"), ("asia-south1", "asia")],
)  # fmt: skip
def test_googles_images_are_the_nearest(tmp_path: Path, region: str, place: str) -> None:
    project = bake(tmp_path, region=region, worker_machine="g2-standard-24").project
    image = job(project, "reduction-server")["workerPoolSpecs"][2]["containerSpec"]["imageUri"]
    assert image == f"{place}-docker.pkg.dev/vertex-ai-restricted/training/reductionserver:latest"
    executor = job(project, "prebuilt")["workerPoolSpecs"][0]["pythonPackageSpec"]["executorImageUri"]
    assert executor.startswith(f"{place}-docker.pkg.dev/vertex-ai/training/")


@pytest.mark.parametrize(("license", "title"), [("Apache-2.0", "Apache License"), ("MIT", "MIT License")])
def test_the_license_is_the_chosen_one(tmp_path: Path, license: str, title: str) -> None:
    text = (bake(tmp_path, license=license).project / "LICENSE").read_text(encoding="utf-8")
    assert text.strip().startswith(title)


def test_a_project_says_which_release_of_the_launcher_it_is_of(tmp_path: Path) -> None:
    assert settings(bake(tmp_path).project)["launcher"] == vertex_launch.__version__


def test_no_license_is_no_file(tmp_path: Path) -> None:
    assert not (bake(tmp_path, license="none").project / "LICENSE").exists()


def test_the_next_commands_are_said(tmp_path: Path) -> None:
    said = bake(tmp_path, project_slug="digits-vit", launcher="0.2.0").stdout.split("\n")
    steps = [line.strip() for line in said[said.index("Next:") + 1 :]]
    assert steps[:4] == [
        "cd digits-vit",
        "pip install nox",
        "nox -s local",
        "README.md contains a path on this machine.",
    ]


def test_baking_again_over_a_project_gives_the_same_project(tmp_path: Path) -> None:
    first = texts(bake(tmp_path).project)
    again = cookiecutter(tmp_path, "--no-input", "--overwrite-if-exists", "parts=all")
    assert texts(again.project) == first


def test_each_question_is_a_sentence_with_labels_for_its_choices() -> None:
    prompts = QUESTIONS["__prompts__"]
    asked = {question: default for question, default in QUESTIONS.items() if not question.startswith("_")}
    assert list(prompts) == list(asked)
    for question, choices in asked.items():
        if isinstance(choices, list):
            assert prompts[question].keys() == {"__prompt__", *choices}


def test_a_machine_is_labelled_with_its_gpus() -> None:
    labels = QUESTIONS["__prompts__"]["worker_machine"]
    for machine, facts in QUESTIONS["_machines"].items():
        assert labels[machine] == f"{facts['label']} ({machine})"
        assert facts["label"].startswith(f"{facts['count']} x ")
    assert sorted(QUESTIONS["worker_machine"]) == sorted(MACHINES)


def test_the_questions_and_the_project_know_the_same_regions_and_machines() -> None:
    path = FACTS / "machines.yaml"
    known = yaml.safe_load(path.read_text(encoding="utf-8"))
    presets = {facts["accelerator"] for facts in QUESTIONS["_machines"].values()}
    offered = {region: presets & set(accelerators) for region, accelerators in known["regions"].items()}
    assert {region: set(each) for region, each in QUESTIONS["_regions"].items()} == offered
    for machine, facts in QUESTIONS["_machines"].items():
        assert facts["count"] in known["machines"][machine]["gpus"][facts["accelerator"]]
        assert 1 in known["machines"][facts["small"]]["gpus"][facts["accelerator"]]
        assert facts["gbps"] == gbps(known, machine, facts)
        assert facts.get("fabric", False) == ("fabric_gbps" in known["machines"][machine])


def gbps(known: Any, machine: str, facts: Any) -> int:
    """The machine's network with its GPUs; an N1's grows with its vCPUs up to a cap for the GPUs."""
    row, network = known["machines"][machine], known["n1_gpu_network"]
    if not machine.startswith("n1-"):
        return int(row["gbps"])
    cap = network["cap_gbps"][facts["accelerator"]][facts["count"]]
    return int(min(network["gbps_per_vcpu"] * row["vcpus"], cap))

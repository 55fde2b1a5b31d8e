"""The generated project passes its own checks, trains, and passes the template's tests of its trainer, for real."""

import json
import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar

import pytest

from launcher.tests.running import while_fresh
from noxfile import RIVALS
from tests import kept
from tests.conftest import MODULES, ROOT, bake, give_environment, run

# The project's own settings do not know the mark `proof`.
UNKNOWN = ("-W", "ignore::pytest.PytestUnknownMarkWarning")
TRAINER_TESTS = (sys.executable, "-m", "nox", "--session", "tests", "--", *UNKNOWN, "-m")
# The launcher and the tests of it are typed where they stand, and the tests of the trainer import both.
TYPED = ("trainer", "tests", "noxfile.py", "--follow-imports=silent", "--untyped-calls-exclude=google")
# Of the second example: what its two files have to do with. It shares an environment that nox would make anew for it.
OF_THE_FILES = [f"tests/test_{name}.py" for name in ("data", "model")]
# Its export; two processes, one or both of them killed; its own mistakes and words; what is made of it over HTTP.
OF_THE_EXAMPLE = [f"tests/test_{name}.py" for name in ("export", "train", "example", "served", "random_kills")]
# Threads of several replicas wait for one another in loops, where cores are fewer.
ONE_THREAD = ("--pass-env", "OMP_NUM_THREADS")
# What there is to find in a job file, and said in its first lines.
WARNED = {"evaluator.yaml": "pool-gap", "prebuilt.yaml": "prebuilt-ended"}
MACHINES = json.loads((ROOT / "cookiecutter.json").read_text(encoding="utf-8"))["worker_machine"]


@pytest.fixture(scope="class")
def project(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A freshly baked project. All those of a framework share one environment, which BAKED keeps from run to run."""
    home = Path(os.environ.get("BAKED", tmp_path_factory.mktemp("baked")))
    folder = home / request.cls.__name__
    for old in ("template", "work"):
        shutil.rmtree(folder / old, ignore_errors=True)
    answers = {"framework": request.cls.framework, "example": request.cls.example, "parts": request.cls.parts}
    baked = bake(folder, **answers).project
    give_environment(baked, request.cls.framework, home)
    return baked


@pytest.fixture(scope="class")
def laid_over(request: pytest.FixtureRequest, project: Path) -> list[str]:
    """The template's tests of the trainer, laid over the project's own as frameworks/ is over the rest."""
    parts = ("shared", *request.cls.once, request.cls.framework, request.cls.example)
    folders = [ROOT / "tests/trainer" / name for name in parts]
    files = [file for folder in folders for file in sorted(folder.glob("*.py"))]
    for file in files:
        target = project / "tests" / file.name
        assert not target.exists()
        shutil.copy(file, target)
    return [f"tests/{file.name}" for file in files if file.name.startswith("test_")]


def trained(project: Path, job: str, *words: str) -> str:
    """What `vertex-launch run` says of a job that succeeds."""
    command = ("-m", "vertex_launch", "run", f"jobs/{job}.yaml", *ONE_THREAD, *words)
    done = run(project, str(project / ".venv/bin/python"), *command, OMP_NUM_THREADS="1")
    print(done.stdout)
    assert done.returncode == 0
    return done.stdout


@pytest.mark.slow
class Framework:
    """What holds of both frameworks. The tests of a class run in one process and share its project."""

    framework: str
    example = "images"
    parts = "all"
    once: ClassVar[Sequence[str]] = ()  # of tests/trainer, what no framework changes


class OfItsOwn(Framework):
    """What its owner runs."""

    parts = "core"

    @pytest.mark.proof
    def test_the_generated_project_passes_all_its_own_tests(self, project: Path) -> None:
        self.pass_tests(project)

    def pass_tests(self, project: Path, *chosen: str) -> None:
        done = run(project, sys.executable, "-m", "nox", "--session", "tests", "--", *chosen)
        print(done.stdout)
        assert done.returncode == 0

    def test_the_generated_project_passes_its_own_lint_and_check(self, project: Path) -> None:
        done = run(project, sys.executable, "-m", "nox", "--session", "lint", "check")
        assert done.returncode == 0, done.stdout


class OfTheTemplate(Framework):
    """What the template's developers want to know of it."""

    of_parts: ClassVar[Sequence[str]] = ()  # the project's own tests whose results depend on its parts
    machine_count: str  # of the presets that are checked; few in one framework, more in the other
    machines: ClassVar[Sequence[str]]  # that are checked at each change; a proof checks them all
    strategies: ClassVar[Mapping[str, str]]  # job file -> what its chief says at first

    # The longest test is first: a test process reserves other tests while only two of its own are left.
    def test_the_template_s_own_tests_of_the_trainer_pass(self, project: Path, laid_over: list[str]) -> None:
        done = run(project, *TRAINER_TESTS, "not proof", *laid_over, *self.of_parts, PYTHONPATH=MODULES)
        print(done.stdout)
        assert done.returncode == 0

    @pytest.mark.proof
    def test_the_three_replicas_of_the_demo_train_to_the_accuracy_that_the_readme_shows(self, project: Path) -> None:
        demo = ("local", "--", "jobs/workers.yaml", "--max-replicas", "3", *ONE_THREAD)
        done = run(project, sys.executable, "-m", "nox", "--session", *demo, OMP_NUM_THREADS="1")
        print(done.stdout)
        assert done.returncode == 0
        assert "Job succeeded" in done.stdout
        assert float(done.stdout.rpartition("accuracy ")[2].partition(";")[0]) >= 0.96

    def test_there_is_nothing_to_find_in_the_job_files_of_some_presets(self, tmp_path: Path) -> None:
        self.find_nothing_for(self.machines, tmp_path)

    @pytest.mark.proof
    def test_there_is_nothing_to_find_in_the_job_files_of_any_preset(self, tmp_path: Path) -> None:
        self.find_nothing_for(MACHINES, tmp_path)

    def find_nothing_for(self, machines: Sequence[str], tmp_path: Path) -> None:
        for machine in machines:
            folder = tmp_path / machine
            answers = {"framework": self.framework, "worker_machine": machine, "machine_count": self.machine_count}
            baked = bake(folder, **answers).project
            jobs = sorted(path.name for path in (baked / "jobs").glob("*.yaml"))
            assert ("reduction-server.yaml" in jobs) == (machine != "a3-highgpu-8g")
            # NCCL passes reducers by on machines with 16 GPUs; Google's own example has them.
            passed_by = {"reduction-server.yaml": "reducer-bypassed"} if machine == "a2-megagpu-16g" else {}
            done = run(
                baked, sys.executable, "-m", "vertex_launch", "check", "--json", *(f"jobs/{name}" for name in jobs)
            )
            assert done.returncode == 0, done.stdout
            found = [(Path(one["file"]).name, one["code"]) for one in json.loads(while_fresh(done.stdout))]
            assert found == [*(WARNED | passed_by).items()]

    def test_the_types_of_its_trainer_are_right(self, project: Path) -> None:
        done = run(project, sys.executable, "-m", "nox", "--session", "types", "--", "trainer", "noxfile.py")
        assert done.returncode == 0, done.stdout

    @pytest.mark.proof
    def test_all_its_types_and_those_of_the_template_s_tests_are_right(
        self, project: Path, laid_over: list[str]
    ) -> None:
        done = run(project, sys.executable, "-m", "nox", "--session", "types", "--", *TYPED, MYPYPATH=MODULES)
        assert done.returncode == 0, done.stdout

    @pytest.mark.proof
    def test_the_template_s_own_proofs_of_the_trainer_pass(self, project: Path, laid_over: list[str]) -> None:
        installed = run(project, ".venv/bin/python", "-m", "pip", "install", "-q", *RIVALS[self.framework])
        assert installed.returncode == 0, installed.stdout
        done = run(project, *TRAINER_TESTS, "proof", *kept.options(self.framework), *laid_over, PYTHONPATH=MODULES)
        print(done.stdout)
        assert done.returncode == 0

    @pytest.mark.proof
    def test_reducers_are_named_and_not_started(self, project: Path) -> None:
        shown = trained(project, "reduction-server", "--max-replicas", "3", "--", "--steps", "60", "--warmup", "10")
        assert "3 replicas on this machine" in shown
        assert "Not started: workerpool2-0 to workerpool2-9 (reducers)" in shown
        assert "10 reducers are not used: this run uses CPUs, but reducers need GPUs" in shown

    @pytest.mark.proof
    def test_every_other_job_file_trains_here_and_names_its_strategy(self, project: Path) -> None:
        words = ("--fresh", "--max-replicas", "2", "--", "--steps", "20", "--warmup", "5")
        for job, said in self.strategies.items():
            assert said in trained(project, job, *words)

    @pytest.mark.proof
    def test_a_job_in_googles_image_runs_with_the_package_that_was_packed(self, project: Path) -> None:
        packed = run(project, sys.executable, "-m", "nox", "--session", "package")
        print(packed.stdout)
        assert "upload it: gcloud storage cp dist/" in packed.stdout
        shown = trained(project, "prebuilt", "--", "--steps", "10", "--warmup", "2")
        assert "this image reached its end of availability on" in shown
        assert "Job succeeded" in shown

    @pytest.mark.proof
    def test_the_job_with_an_evaluator_scores_its_checkpoints(self, project: Path) -> None:
        flags = ("--steps", "60", "--warmup", "10", "--checkpoint-every", "30")
        shown = trained(project, "evaluator", "--fresh", "--max-replicas", "2", "--", *flags)
        assert "3 of 4 replicas on this machine" in shown
        assert "[workerpool3-0] step 30/60  heldout loss" in shown


class OfText(Framework):
    """The second example, in the same loop."""

    example = "text"
    strategies: ClassVar[Sequence[str]]  # tests of those that test_train.py has not

    def run_pytest(self, project: Path, *arguments: str) -> None:
        python = str(project / ".venv/bin/python")
        done = run(project, python, "-m", "pytest", *UNKNOWN, *arguments, PYTHONPATH=MODULES)
        print(done.stdout)
        assert done.returncode == 0

    def test_its_two_files_do_what_they_say(self, project: Path, laid_over: list[str]) -> None:
        self.run_pytest(project, "-m", "not proof", *OF_THE_FILES)

    @pytest.mark.proof
    def test_every_strategy_trains_it_and_what_was_trained_is_served(self, project: Path, laid_over: list[str]) -> None:
        self.run_pytest(project, *kept.options(f"{self.framework}-text"), *OF_THE_EXAMPLE, *self.strategies)

    @pytest.mark.proof
    def test_its_types_are_right(self, project: Path, laid_over: list[str]) -> None:
        done = run(project, str(project / ".venv/bin/python"), "-m", "mypy", *TYPED, MYPYPATH=MODULES)
        assert done.returncode == 0, done.stdout


class TestPyTorch(OfTheTemplate):
    framework = "pytorch"
    once = ("once",)
    of_parts = ("tests/test_layout.py",)
    machine_count = "2"
    machines = ("a2-highgpu-8g", "n1-highmem-96", "a3-highgpu-8g")
    strategies: ClassVar[Mapping[str, str]] = {
        "single": "training on 1 x CPU",
        "sharded": "training on 2 x CPU, fsdp: shard 2",
        "pipeline": "training on 4 x CPU, pipeline: replicate 2 x stage 2",
        "tensor": "training on 4 x CPU, tensor: shard 2 x tensor 2",
    }


class TestTensorFlow(OfTheTemplate):
    framework = "tensorflow"
    machine_count = "5"
    machines = ("a2-megagpu-16g", "g2-standard-24")
    strategies: ClassVar[Mapping[str, str]] = {
        "single": "training on 1 x CPU",
        "model-parallel": "training on 4 x CPU, model_parallel: replicate 2 x layers 2",
        "parameter-server": "training on 1 worker of 1 CPU, parameter_server: 2 servers",
    }


class TestPyTorchOfItsOwn(OfItsOwn):
    framework = "pytorch"

    # TensorFlow's, most of which are the same, are among the proofs.
    def test_the_generated_project_passes_its_own_quick_tests(self, project: Path) -> None:
        self.pass_tests(project, "-m", "not slow")


class TestTensorFlowOfItsOwn(OfItsOwn):
    framework = "tensorflow"


class TestPyTorchWithText(OfText):
    framework = "pytorch"
    strategies = tuple(
        f"tests/test_strategy.py::test_a_strategy_loses_as_much_as_one_process[{name}]"
        for name in ("fsdp", "fsdp, copied", "pipeline", "tensor")
    )


@pytest.mark.proof
class TestTensorFlowWithText(OfText):
    framework = "tensorflow"
    strategies = (
        "tests/test_strategy.py::test_layers_on_two_devices_take_the_steps_of_one_device",
        "tests/test_parameter_server.py::test_a_lost_parameter_server_ends_the_run_and_every_strategy_resumes_it",
    )

"""Packages of a job, with the real pip and packages as the SDK makes them; the package index is a folder."""

import json
import os
import stat
import subprocess
import sys
import time
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from vertex_launch.errors import FaultError
from vertex_launch.job.addresses import object_path
from vertex_launch.job.contract import Replica, replicas
from vertex_launch.job.spec import Job, parse
from vertex_launch.local.running import packages

MACHINE = {"machineType": "n1-standard-4"}
REDUCERS = {"machineSpec": MACHINE, "replicaCount": 1, "containerSpec": {"imageUri": "registry/reductionserver:latest"}}
MODULE = "aiplatform_custom_trainer_script.task"
ADDRESS = "gs://b/staging/aiplatform-2026-11-21-trainer-0.1.tar.gz"

# Says where its module lies and what it was given.
SCRIPT = "import json, sys, yaml\nprint(json.dumps([__file__, sys.argv[1:], yaml.__file__]))\n"

# The smallest build system: it packs one module.
BACKEND = """
import zipfile
def build_wheel(folder, config_settings=None, metadata_directory=None):
    name = "built-1.0-py3-none-any.whl"
    with zipfile.ZipFile(f"{folder}/{name}", "w") as wheel:
        wheel.writestr("built.py", "print('built by its own build system')")
        wheel.writestr("built-1.0.dist-info/METADATA", "Metadata-Version: 2.1\\nName: built\\nVersion: 1.0\\n")
        wheel.writestr("built-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n")
        wheel.writestr("built-1.0.dist-info/RECORD", "")
    return name
"""


@pytest.fixture
def buckets(tmp_path: Path) -> Path:
    folder = tmp_path / "gcs"
    (folder / "b/staging").mkdir(parents=True)
    return folder


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    """A shell's variables; its home folder is empty, and its package index a folder without a package."""
    home, index = tmp_path / "home", tmp_path / "index"
    home.mkdir()
    index.mkdir()
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    return {"PATH": path, "HOME": str(home), "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(index)}


def sdk_package(path: Path, requirements: Sequence[str] = ()) -> None:
    """What aiplatform.CustomTrainingJob uploads for SCRIPT."""
    from google.cloud.aiplatform.utils.source_utils import _TrainingScriptPythonPackager

    source = path.with_suffix(".py")
    source.write_text(SCRIPT)
    folder = path.parent / f"build-{time.monotonic_ns()}"
    folder.mkdir()
    made = _TrainingScriptPythonPackager(str(source), requirements=requirements).make_package(str(folder))
    Path(made).rename(path)


def source_package(path: Path, **files: str) -> None:
    """A source package of any files; a key's __ is a dot, and ___ a slash."""
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in files.items():
            archive.writestr(f"{path.stem}/{name.replace('___', '/').replace('__', '.')}", text)


def wheel(folder: Path, name: str, module: str) -> None:
    """A package of one module, ready to be installed."""
    info = f"{name}-1.0.dist-info"
    with zipfile.ZipFile(folder / f"{name}-1.0-py3-none-any.whl", "w") as archive:
        archive.writestr(f"{name}.py", module)
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")


def pool(count: int = 1, address: str = ADDRESS, module: str = MODULE) -> dict[str, Any]:
    package = {"executorImageUri": "image", "packageUris": [address], "pythonModule": module, "args": ["--steps", "5"]}
    return {"machineSpec": MACHINE, "replicaCount": count, "pythonPackageSpec": package}


def shell(*command: str) -> dict[str, Any]:
    container = {"imageUri": "image", "command": list(command)}
    return {"machineSpec": MACHINE, "replicaCount": 1, "containerSpec": container}


def job(*pools: dict[str, Any]) -> Job:
    return Job(Path("job.yaml"), "job", parse(json.dumps({"workerPoolSpecs": pools}), "job.yaml"))


def prepared(job: Job, env: dict[str, str], buckets: Path, shell: dict[str, str] | None = None) -> list[Replica]:
    """The replicas of a job; `env` are their variables, and those of the shell if it has no others."""
    everyone = replicas(job, "123", lambda pool, index: f"127.0.0.1:{10000 + 10 * pool + index}")
    started = [Replica(one.pool, one.index, one.command, env) for one in everyone if not one.reduces]
    return packages.prepared(job, started, buckets.parent / "run", buckets, shell or env)


def output(replica: Replica, *command: str, cwd: Path | None = None) -> str:
    """What a replica's command, or another in its place, prints."""
    run = subprocess.run(
        command or replica.command, env=dict(replica.env), cwd=cwd, capture_output=True, text=True, timeout=240
    )
    assert run.returncode == 0, run.stderr
    return run.stdout


def said(buckets: Path) -> str:
    return (buckets.parent / "run/pip.log").read_text()


def test_a_package_runs_with_what_is_here_and_is_installed_for_its_job_alone(
    buckets: Path, env: dict[str, str], tmp_path: Path
) -> None:
    sdk_package(buckets / ADDRESS.removeprefix("gs://"), requirements=["PyYAML"])
    chief, worker = prepared(job(pool(), pool(), REDUCERS), env, buckets)
    for replica in (chief, worker):
        module, arguments, yaml_module = json.loads(output(replica))
        assert Path(module).is_relative_to(tmp_path / "run")
        assert not Path(yaml_module).is_relative_to(tmp_path)
        assert arguments == ["--steps", "5"]
    assert [stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("run", "run/pip.log")] == [0o700, 0o600]
    assert "Requirement already satisfied: PyYAML" in said(buckets)
    assert said(buckets).count("Successfully installed aiplatform") == 1  # once for both
    missing = subprocess.run([sys.executable, "-c", f"import {MODULE}"], capture_output=True, text=True)
    assert "ModuleNotFoundError" in missing.stderr
    assert not {".local", ".cache"} & {path.name for path in (tmp_path / "home").iterdir()}


def test_what_a_package_needs_and_is_not_here_is_installed_with_it_as_the_shell_tells_pip(
    buckets: Path, env: dict[str, str], tmp_path: Path
) -> None:
    wheel(tmp_path / "index", "dependency", "WORD = 'from the index'")
    setup = (
        "import os; assert 'TOKEN' not in os.environ\n"
        "from setuptools import setup; setup(name='p', py_modules=['task'], install_requires=['dependency'])"
    )
    source_package(buckets / "b/p-1.zip", setup__py=setup, task__py="import dependency; print(dependency.WORD)")
    package = job(pool(address="gs://b/p-1.zip", module="task"))
    (replica,) = prepared(package, {"PATH": env["PATH"]}, buckets, env | {"TOKEN": "secret"})
    assert output(replica) == "from the index\n"
    assert "PIP_FIND_LINKS" not in replica.env


def test_programs_of_the_launchers_environment_see_the_package(buckets: Path, env: dict[str, str]) -> None:
    sdk_package(buckets / ADDRESS.removeprefix("gs://"))
    (replica,) = prepared(job(pool()), env, buckets)
    # As tensorboard does: its first line names the launcher's Python.
    assert "--steps" in output(replica, sys.executable, "-m", MODULE, "--steps")


def test_a_folder_here_does_not_hide_a_package_of_the_same_name(
    buckets: Path, env: dict[str, str], tmp_path: Path
) -> None:
    setup = "from setuptools import setup; setup(name='trainer', version='2', packages=['trainer'])"
    task = "print('the package')"
    source_package(buckets / "b/trainer-2.zip", setup__py=setup, trainer_____init____py="", trainer___task__py=task)
    here = tmp_path / "project"
    (here / "trainer").mkdir(parents=True)
    (here / "trainer/__init__.py").touch()
    (here / "trainer/task.py").write_text("print('the folder')")
    (replica,) = prepared(job(pool(address="gs://b/trainer-2.zip", module="trainer.task")), env, buckets)
    assert output(replica, cwd=here) == "the package\n"


def test_a_package_with_a_build_system_of_its_own_gets_it(buckets: Path, env: dict[str, str], tmp_path: Path) -> None:
    wheel(tmp_path / "index", "rare_backend", BACKEND)
    build = '[build-system]\nrequires = ["rare_backend"]\nbuild-backend = "rare_backend"\n'
    source_package(buckets / "b/built-1.0.zip", pyproject__toml=build)
    (replica,) = prepared(job(pool(address="gs://b/built-1.0.zip", module="built")), env, buckets)
    assert output(replica) == "built by its own build system\n"


def test_all_missing_packages_are_named_at_once(buckets: Path, env: dict[str, str]) -> None:
    with pytest.raises(FaultError) as caught:
        prepared(job(pool(), pool(address="gs://b/../../outside.tar.gz")), env, buckets)
    assert str(caught.value).splitlines() == [
        f"job.yaml: workerPoolSpecs[0].pythonPackageSpec.packageUris[0]: {ADDRESS} isn't in the local buckets; upload"
        " it first",
        "job.yaml: workerPoolSpecs[1].pythonPackageSpec.packageUris[0]: gs://b/../../outside.tar.gz isn't in the local"
        " buckets; upload it first",
    ]


@pytest.mark.parametrize(
    ("setup", "reason"),
    [
        ("from setuptools import setup; setup(name='p', install_requires=['no-such-thing'])", "no-such-thing"),
        ("raise SystemExit('out of order')", "metadata"),
    ],
    ids=["needs what is nowhere", "cannot be built"],
)
def test_a_package_that_pip_refuses_is_one_sentence_with_pips_reason(
    buckets: Path, env: dict[str, str], setup: str, reason: str
) -> None:
    source_package(buckets / "b/p-1.zip", setup__py=setup)
    with pytest.raises(FaultError) as caught:
        prepared(job(pool(address="gs://b/p-1.zip")), env, buckets)
    (sentence,) = str(caught.value).splitlines()
    assert sentence.startswith("job.yaml: workerPoolSpecs[0].pythonPackageSpec: pip can't install p-1.zip: ")
    assert reason in sentence
    assert sentence.endswith(f"fix the package. For pip's full output, see {buckets.parent / 'run/pip.log'}")


def test_the_sdks_shell_command_installs_for_its_replica_alone(
    buckets: Path, env: dict[str, str], tmp_path: Path
) -> None:
    """What CustomJob.from_local_script sends for an image that is not Google's; two replicas run it at once."""
    package = buckets / ADDRESS.removeprefix("gs://")
    sdk_package(package)
    command = f"pip install --upgrade pip && pip3 install -q --user {package} && python3 -m {MODULE} --steps 5"
    both = prepared(job(shell("sh", "-c", command), shell("sh", "-c", command)), env, buckets)
    running = [
        subprocess.Popen(one.command, env=dict(one.env), stdout=subprocess.PIPE, stderr=subprocess.PIPE) for one in both
    ]
    for replica, process in zip(both, running, strict=True):
        printed, faults = process.communicate(timeout=240)
        assert process.returncode == 0, faults
        module, arguments, _ = json.loads(printed.splitlines()[-1])
        assert Path(module).is_relative_to(tmp_path / f"run/environments/{replica.name}")
        assert arguments == ["--steps", "5"]
    assert not {".local", ".cache"} & {path.name for path in (tmp_path / "home").iterdir()}


def test_what_a_job_installs_goes_before_what_is_here(buckets: Path, env: dict[str, str], tmp_path: Path) -> None:
    wheel(tmp_path, "yaml", "print('newer')")
    command = f"pip install --user {tmp_path}/yaml-1.0-py3-none-any.whl && python -c 'import yaml'"
    (replica,) = prepared(job(shell("sh", "-c", command)), env, buckets)
    assert output(replica).endswith("newer\n")


@pytest.mark.parametrize(
    ("command", "needed"),
    [
        (["python", "-m", "trainer.task"], False),
        (["python", "-m", "trainer.pipeline"], False),
        (["sh", "-c", "python3 -m pip install x && python3 -m y"], True),
        (["pip3", "install", "x"], True),
    ],
)
def test_only_a_job_that_installs_something_gets_an_environment(
    buckets: Path, env: dict[str, str], command: list[str], needed: bool
) -> None:
    wanted = job(shell(*command))
    (replica,) = prepared(wanted, env, buckets)
    assert (replica.env != env) == needed
    assert (buckets.parent / "run").exists() == needed


@pytest.mark.parametrize(
    ("address", "path"),
    [
        ("gs://b/a/c.csv", "b/a/c.csv"),
        ("gs://b/a//c.csv", "b/a/c.csv"),
        ("gs://b/../c", None),
        ("gs://../b/c", None),
        ("gs:///etc/passwd", None),
        ("gs://b", None),
        ("gs://b/", None),
        ("/etc/passwd", None),
        ("gs://b/\0", None),
    ],
)
def test_an_address_never_leaves_its_bucket(tmp_path: Path, address: str, path: str | None) -> None:
    assert object_path(address, tmp_path) == (tmp_path / path if path else None)

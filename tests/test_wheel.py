"""vertex_launch as a dependency: this repository's wheel, in an empty folder."""

import ast
import itertools
import json
import os
import re
import shutil
import subprocess
import sys
import time
import tomllib
import urllib.request
import zipfile
from importlib.metadata import distribution, requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.conftest import CACHES, LAUNCHER, ROOT, kept_folder, run

PACKAGE = LAUNCHER / "vertex_launch"
SECONDS = 120  # until the service must have started
PROGRAM = "import os; print('in a cluster:', 'CLUSTER_SPEC' in os.environ)"
JOB = f"""\
workerPoolSpecs:
  - machineSpec: {{machineType: n1-standard-8}}
    replicaCount: 1
    containerSpec:
      imageUri: us-docker.pkg.dev/my-project/training/mine:1
      command: [python, -c, "{PROGRAM}"]
"""


def passed(folder: Path, *command: str, **environ: str) -> str:
    """What a command prints; it must succeed."""
    done = run(folder, *command, **environ)
    assert done.returncode == 0, done.stdout
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of this repository, built with the hatchling of this environment."""
    folder = tmp_path_factory.mktemp("wheel")
    quick = ("--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", str(folder))
    passed(ROOT, sys.executable, "-m", "pip", "wheel", *quick, str(LAUNCHER))
    (built,) = folder.glob("vertex_launch-*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel: Path) -> Path:
    """A folder with the wheel alone, for the PYTHONPATH; its libraries are those of this environment."""
    folder = wheel.with_name("installed")
    where = ("--quiet", "--no-deps", "--target", str(folder))
    passed(wheel.parent, sys.executable, "-m", "pip", "install", *where, str(wheel))
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with one job file and nothing else."""
    (tmp_path / "job.yaml").write_text(JOB, encoding="utf-8")
    return tmp_path


def imported() -> set[str]:
    """The modules of libraries that the package imports, wherever it does."""
    trees = [ast.parse(path.read_text(encoding="utf-8")) for path in PACKAGE.rglob("*.py")]
    nodes = [node for tree in trees for node in ast.walk(tree)]
    plain = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    names = plain | {str(node.module) for node in nodes if isinstance(node, ast.ImportFrom)}
    shim = (path.stem for path in (PACKAGE / "local/running/shim").iterdir())  # a program of its own
    own = {*sys.stdlib_module_names, PACKAGE.name, *shim}
    return {name for name in names if name.partition(".")[0] not in own}


def test_the_wheel_asks_for_every_library_that_the_package_imports() -> None:
    metadata = tomllib.loads((LAUNCHER / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    lines = [*metadata["dependencies"], *itertools.chain(*metadata["optional-dependencies"].values())]
    asked = {canonicalize_name(Requirement(line).name) for line in lines}
    pinned = {canonicalize_name(one.name) for name in asked for one in needs(name) if "==" in str(one.specifier)}
    files = {str(file) for name in asked | pinned for file in distribution(name).files or ()}
    for module in imported():
        path = module.replace(".", "/")
        assert any(file.startswith((f"{path}.py", f"{path}/")) for file in files), f"not asked for: {module}"


def needs(name: str) -> list[Requirement]:
    """What an installed library asks for without its extras."""
    lines = map(Requirement, requires(name) or ())
    return [line for line in lines if not line.marker or line.marker.evaluate({"extra": ""})]


@pytest.mark.slow
def test_the_wheel_has_every_file_of_the_package_and_no_other(wheel: Path, tmp_path: Path) -> None:
    clean = Path(shutil.copytree(PACKAGE, tmp_path / PACKAGE.name, ignore=CACHES))
    expected = {str(path.relative_to(tmp_path)) for path in clean.rglob("*") if path.is_file()}
    packed = set(zipfile.ZipFile(wheel).namelist())
    assert {name for name in packed if ".dist-info/" not in name} == expected


@pytest.mark.slow
def test_a_job_file_in_an_empty_folder_is_checked_and_planned_and_runs(installed: Path, folder: Path) -> None:
    command, path = str(installed / "bin/vertex-launch"), {"PYTHONPATH": str(installed)}
    assert passed(folder, command, "check", "job.yaml", **path).splitlines()[-1].startswith("job.yaml: ok")
    assert "n1-standard-8" in passed(folder, command, "plan", "job.yaml", "--gradient-bytes", "1000000", **path)
    assert "in a cluster: True" in passed(folder, command, "run", "job.yaml", **path)


@pytest.mark.slow
def test_the_local_vertex_starts_in_an_empty_folder(installed: Path, folder: Path) -> None:
    command = [str(installed / "bin/vertex-launch"), "emulate", "--port", "0"]
    with (folder / "printed").open("wb") as printed:
        environ = os.environ | {"PYTHONPATH": str(installed)}
        process = subprocess.Popen(command, cwd=folder, env=environ, stdout=printed, stderr=printed)
    try:
        url = f"{endpoint(process, folder / 'printed')}/v1/projects/p/locations/us-central1/customJobs"
        with urllib.request.urlopen(url, timeout=SECONDS) as answer:
            assert not json.loads(answer.read()).get("customJobs")
    finally:
        process.terminate()
        process.wait(timeout=SECONDS)


def endpoint(process: "subprocess.Popen[bytes]", printed: Path) -> str:
    """The address that the service prints when it listens."""
    deadline = time.monotonic() + SECONDS
    while not (found := re.search(r"^Local Vertex at (http://\S+):", printed.read_text(), re.MULTILINE)):
        assert process.poll() is None, printed.read_text()
        assert time.monotonic() < deadline, printed.read_text()
        time.sleep(0.05)
    return found[1]


@pytest.mark.slow
@pytest.mark.proof
def test_the_launcher_installs_into_an_empty_environment(folder: Path) -> None:
    environment = kept_folder("wheel-environment", folder)
    passed(folder, sys.executable, "-m", "venv", "--clear", str(environment))
    passed(folder, str(environment / "bin/pip"), "install", "--quiet", str(LAUNCHER))
    passed(folder, str(environment / "bin/pip"), "check")
    assert "job.yaml: ok" in passed(folder, str(environment / "bin/vertex-launch"), "check", "job.yaml")
    assert "in a cluster: True" in passed(folder, str(environment / "bin/vertex-launch"), "run", "job.yaml")

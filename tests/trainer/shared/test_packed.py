"""What `nox -s package` makes: a source package that Vertex AI installs in one of Google's images."""

import re
import subprocess
import sys
import tarfile
import tomllib
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.marks import ONCE
from tests.training import DEADLINE, PROJECT
from vertex_launch.cli import image
from vertex_launch.cli.image import Package
from vertex_launch.errors import FaultError
from vertex_launch.job.addresses import object_path
from vertex_launch.job.state_dir import StateDir

DESCRIBED: dict[str, Any] = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]
SETTINGS = tomllib.loads((PROJECT / "vertex.toml").read_text())
JOB = PROJECT / "jobs/prebuilt.yaml"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Package:
    """The package of this project; its folder `dist` is another one."""
    folder = tmp_path_factory.mktemp("project")
    for name in ("pyproject.toml", "trainer", "requirements"):
        (folder / name).symlink_to(PROJECT / name)
    return image.pack(folder, folder / "dist")


def test_it_holds_the_trainer_and_nothing_of_the_laptops_side(made: Package) -> None:
    with tarfile.open(made.file) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {name for name in names if name.endswith(".py")} == {
        path.relative_to(PROJECT).as_posix() for path in (PROJECT / "trainer").rglob("*.py")
    }
    assert not any(name.startswith(("vertex_launch", "jobs", "tests")) for name in names)
    assert {"requirements/package.txt", "requirements/prebuilt.txt"} <= names  # from which pip learns what it needs


def test_it_asks_for_what_the_trainer_needs_and_takes_what_is_tested_here(made: Package) -> None:
    with tarfile.open(made.file) as archive:
        (name,) = (name for name in archive.getnames() if name.count("/") == 1 and name.endswith("/PKG-INFO"))
        information = archive.extractfile(name)
        assert information
        asked = dict(re.findall(r"^Requires-Dist: (\S+?)>=([0-9.]+)$", information.read().decode(), re.MULTILINE))
    libraries, framework = pinned("trainer.txt"), pinned("cpu.txt")
    assert libraries.keys() <= asked.keys() <= libraries.keys() | framework.keys()
    for name, version in asked.items():
        assert numbers(version) <= numbers((libraries | framework)[name])


def pinned(name: str) -> dict[str, str]:
    """Library -> version, of a file in requirements/."""
    return dict(re.findall(r"^([\w-]+)==([0-9.]+)", (PROJECT / "requirements" / name).read_text(), re.MULTILINE))


def numbers(version: str) -> list[int]:
    return [int(part) for part in version.split(".")]


@ONCE
def test_it_is_installed_by_pip_and_runs(made: Package, tmp_path: Path) -> None:
    # setuptools is here already; in the image pip fetches it.
    install = [
        "-m",
        "pip",
        "install",
        "--no-index",
        "--no-deps",
        "--no-build-isolation",
        "--target",
        str(tmp_path / "x"),
    ]
    subprocess.run([sys.executable, *install, str(made.file)], check=True, capture_output=True, timeout=DEADLINE)
    script = "from trainer.parallel import choice; print(choice.__file__, choice.parse(['--steps', '7'])[1].steps)"
    done = subprocess.run(
        [sys.executable, "-P", "-c", script],
        cwd=tmp_path,
        env={"PYTHONPATH": str(tmp_path / "x")},
        capture_output=True,
        text=True,
        timeout=DEADLINE,
    )
    assert done.stdout == f"{tmp_path}/x/trainer/parallel/choice.py 7\n", done.stderr
    (installed,) = metadata.distributions(name=DESCRIBED["name"], path=[str(tmp_path / "x")])
    assert installed.version == DESCRIBED["version"]


def test_the_job_file_and_the_local_vertex_look_for_it_where_it_is_put(made: Package, tmp_path: Path) -> None:
    (address,) = yaml.safe_load(JOB.read_text())["workerPoolSpecs"][0]["pythonPackageSpec"]["packageUris"]
    assert address == made.address(SETTINGS["bucket"])
    state_dir = StateDir(tmp_path)
    copy = image.place(made, SETTINGS["bucket"], state_dir.buckets)
    assert object_path(address, state_dir.buckets) == copy
    assert copy.read_bytes() == made.file.read_bytes()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "the file doesn't describe a package"),
        ("[project", "the file doesn't describe a package"),
        ('[project]\nname = "a b"\nversion = "1"\n', "setuptools can't build a package from this folder: "),
    ],
)
def test_a_description_that_is_none_is_one_sentence(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "pyproject.toml").write_text(text)
    for name in ("trainer", "requirements"):
        (tmp_path / name).symlink_to(PROJECT / name)
    with pytest.raises(FaultError, match=words) as caught:
        image.pack(tmp_path, tmp_path / "dist")
    assert len(str(caught.value).splitlines()) == 1

"""The images' Dockerfiles: what hadolint does not look for, and hadolint itself."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import PROJECT, ROOT, bake

FILES = sorted((ROOT / PROJECT / "frameworks").glob("*/Dockerfile"))

pytestmark = pytest.mark.parametrize("path", FILES, ids=lambda path: path.parent.name)


def instructions(path: Path) -> list[tuple[str, str]]:
    """(name, arguments) of each instruction, continued lines joined, comments left out."""
    text = "\n".join(line for line in path.read_text().splitlines() if not line.lstrip().startswith("#"))
    lines = re.sub(r"\\\n", " ", text).splitlines()
    return [(line.split()[0], line.split(maxsplit=1)[1].strip()) for line in lines if line.strip()]


def of(path: Path, name: str) -> list[str]:
    return [arguments for instruction, arguments in instructions(path) if instruction == name]


def installs(path: Path) -> list[str]:
    """The steps that install the framework, and what the trainer needs besides."""
    return [arguments for arguments in of(path, "RUN") if "pip install" in arguments]


def test_hadolint_finds_nothing(path: Path, tmp_path: Path) -> None:
    baked = bake(tmp_path, framework=path.parent.name).project / "Dockerfile"
    command = [str(Path(sys.executable).with_name("hadolint")), str(baked)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "")


def test_the_base_can_be_pinned_by_digest(path: Path) -> None:
    base = of(path, "ARG")[0]
    assert re.fullmatch(r"BASE_IMAGE=nvidia/cuda:([0-9.]+|{{cookiecutter.__cuda_release}})-base-ubuntu[0-9.]+", base)
    assert of(path, "FROM") == ["${BASE_IMAGE}"]


def test_googles_key_signs_googles_repository_only(path: Path) -> None:
    text = " ".join(of(path, "RUN"))
    assert "apt-key " not in text
    assert "deb [signed-by=/usr/share/keyrings/cloud.google.asc] https://packages.cloud.google.com/apt" in text


def test_reduction_server_is_installed_and_fast_socket_is_not(path: Path) -> None:
    text = " ".join(of(path, "RUN"))
    assert re.search(r"apt-get install [^&]*\bgoogle-reduction-server\b", text)
    assert not re.search(r"apt-get install [^&]*\bgoogle-fast-socket\b", text)
    assert "apt-get purge --yes google-fast-socket" in text
    # `vertex-launch check` reads this.
    assert 'reduction-server="google-reduction-server"' in of(path, "LABEL")


def test_the_build_ends_with_whether_nccl_can_use_reducers_and_fails_only_if_it_must(path: Path) -> None:
    names = [name for name, _ in instructions(path)]
    last = of(path, "RUN")[-1]
    assert last.startswith("bash /opt/requirements/reducers.sh ${REDUCTION_SERVER:+")
    assert {*names[len(names) - names[::-1].index("RUN") :]} == {"ENV", "ENTRYPOINT"}
    assert "REDUCTION_SERVER=" in of(path, "ARG")


def test_a_change_of_code_or_of_a_library_does_not_install_the_framework_again(path: Path) -> None:
    names = [f"{name} {arguments}" for name, arguments in instructions(path)]
    (code,) = [i for i, line in enumerate(names) if line.startswith("COPY trainer")]
    framework, libraries = [i for i, line in enumerate(names) if "pip install" in line]
    assert framework < libraries < code
    assert not any(word in " ".join(names[: libraries - 1]) for word in ("trainer.txt", "/lock.txt"))


def test_what_pip_installs_is_of_the_versions_in_a_lock_and_is_fetched_once(path: Path) -> None:
    framework, libraries = installs(path)
    assert "--constraint /opt/requirements/cuda.lock.txt " in framework
    assert "--constraint /opt/requirements/lock.txt " in libraries
    for one in (framework, libraries):
        assert one.startswith("--mount=type=cache,target=/root/.cache/pip ")
        assert "--no-cache-dir" not in one


def test_root_runs_the_trainer_since_what_vertex_mounts_is_roots(path: Path) -> None:
    assert of(path, "USER") == []


def test_the_trainer_gets_the_signals_itself(path: Path) -> None:
    assert json.loads(of(path, "ENTRYPOINT")[-1]) == ["python", "-m", "trainer.task"]

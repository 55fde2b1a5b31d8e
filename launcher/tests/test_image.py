"""Images, as Docker, Podman and Cloud Build are asked for them: programs stand in that write down their words."""

import json
import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from launcher.tests.running import DEADLINE, SETTINGS, SOURCE, eventually

VERDICT = "NCCL can load the plug-in of the reducers, net v6"
# Prints, where it is asked what the image has, as an engine would.
SAYS = f"""test "$1" != run || printf -- '--label=nccl=2.27\\n--label=reducers={VERDICT}\\nnoise\\n'"""


def recorded(folder: Path, name: str, then: str = "") -> Path:
    """A program of that name, first on the PATH: it appends its words to a file, which is returned."""
    (folder / "bin").mkdir(exist_ok=True)
    program, words = folder / "bin" / name, folder / f"{name}.txt"
    program.write_text(f'#!/bin/sh\nprintf "%s\\n" "$*" >> {shlex.quote(str(words))}\n{then}\n')
    program.chmod(0o755)
    return words


def alone(folder: Path, **variables: str) -> dict[str, str]:
    """An environment without programs but those of the folder, and Python's."""
    path = f"{folder / 'bin'}:{Path(sys.executable).parent}"
    return {"PATH": path, "HOME": str(folder), "PYTHONPATH": str(SOURCE), **variables}


def image(folder: Path, *words: str, **variables: str) -> "subprocess.CompletedProcess[str]":
    """Run `vertex-launch image` in a folder."""
    command, environ = [sys.executable, "-m", "vertex_launch", "image", *words], alone(folder, **variables)
    return subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True, timeout=DEADLINE)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with settings, and without git."""
    (tmp_path / "vertex.toml").write_text(SETTINGS.replace("image:1", "registry:5000/team/trainer:1"))
    return tmp_path


def git(folder: Path, *words: str) -> str:
    git = ("git", "-c", "user.name=a", "-c", "user.email=a@b", *words)
    return subprocess.run(git, cwd=folder, check=True, capture_output=True, text=True).stdout.strip()


def test_an_image_is_built_looked_at_and_labelled(folder: Path) -> None:
    words = recorded(folder, "docker", SAYS)
    done = image(folder, "--no-cache")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == VERDICT
    build, look, again = words.read_text().splitlines()
    same = "build --platform=linux/amd64 --label=org.opencontainers.image.revision= --tag=registry:5000/team/trainer:1"
    assert build == f"{same} --no-cache ."
    assert look.startswith("run --rm --network=none --entrypoint=sh registry:5000/team/trainer:1 -c dpkg-query ")
    assert again == f"{same} --quiet --label=nccl=2.27 --label=reducers={VERDICT} ."


def test_the_small_image_has_a_name_of_its_own(folder: Path) -> None:
    words = recorded(folder, "docker")
    assert image(folder, "cpu", "push").returncode == 0
    build, _, push = words.read_text().splitlines()
    small = "--build-arg=BASE_IMAGE=ubuntu:24.04 --build-arg=REQUIREMENTS=cpu.txt --label=cuda= --tag="
    assert f" {small}registry:5000/team/trainer:1-cpu " in build
    assert push == "push registry:5000/team/trainer:1-cpu"


def test_a_clean_revision_is_a_label_and_a_tag_and_a_changed_one_a_label(folder: Path) -> None:
    words = recorded(folder, "docker")
    for line in (("init", "-q"), ("add", "vertex.toml"), ("commit", "-qm", "all")):
        git(folder, *line)
    revision, path = git(folder, "rev-parse", "--short=12", "HEAD"), f"{folder / 'bin'}:{os.environ['PATH']}"
    assert image(folder, "cpu", "push", PATH=path).returncode == 0
    build, _, *pushed = words.read_text().splitlines()
    assert f" --label=org.opencontainers.image.revision={revision} " in build
    names = ["registry:5000/team/trainer:1-cpu", f"registry:5000/team/trainer:{revision}-cpu"]
    assert pushed == [f"push {name}" for name in names]
    assert [word for word in build.split() if word.startswith("--tag=")] == [f"--tag={name}" for name in names]
    with (folder / "vertex.toml").open("a") as file:
        file.write("# changed\n")
    words.unlink()
    assert image(folder, PATH=path).returncode == 0
    build, *_ = words.read_text().splitlines()
    assert f"revision={revision}-dirty --tag=registry:5000/team/trainer:1 ." in build


def test_podman_builds_and_pushes_where_docker_is_not(folder: Path) -> None:
    words = recorded(folder, "podman")
    done = image(folder, "cpu", "push")
    assert done.returncode == 0, done.stderr
    assert [line.split()[0] for line in words.read_text().splitlines()] == ["build", "run", "push"]


def test_options_of_docker_may_stand_among_the_words_or_behind_two_dashes(folder: Path) -> None:
    words = recorded(folder, "docker")
    assert image(folder, "--build-arg=A=1", "cpu", "--", "--build-arg", "B=2", "--image=x").returncode == 0
    build, *_ = words.read_text().splitlines()
    assert build.endswith(" --build-arg=A=1 --build-arg B=2 --image=x .")


def test_google_builds_the_image_where_there_is_no_engine(folder: Path) -> None:
    done = image(folder)
    assert done.returncode == 1
    assert (
        done.stderr
        == "neither docker nor podman is installed on this machine; to use Cloud Build, add the `cloud` argument\n"
    )
    words = recorded(folder, "gcloud")
    done = image(folder, "cloud", "cpu")
    assert done.returncode == 0, done.stderr
    (line,) = words.read_text().splitlines()
    assert line == "builds submit --project=p --config=.vertex/cloudbuild.json ."
    config = json.loads((folder / ".vertex/cloudbuild.json").read_text())
    assert config["images"] == ["registry:5000/team/trainer:1-cpu"]
    built, labeled = (step["args"] for step in config["steps"])
    assert "--build-arg=REQUIREMENTS=cpu.txt" in built
    docker = recorded(folder, "docker", 'test "$1" = build || printf -- "--label=a=b c\\n--label=d=e\\n"')
    subprocess.run(
        ["bash", "-c", labeled[1].replace("$$", "$")], env={"PATH": f"{folder / 'bin'}:/usr/bin:/bin"}, check=True
    )
    run, _, build = docker.read_text().partition("\nbuild ")
    assert run.startswith("run --rm --network=none --entrypoint=sh ")
    assert build.endswith(" --quiet . --label=a=b c --label=d=e\n")


def test_without_gcloud_google_cannot_be_asked(folder: Path) -> None:
    done = image(folder, "cloud")
    assert done.returncode == 1
    assert done.stderr == "gcloud isn't installed; install it: https://cloud.google.com/sdk/docs/install\n"


def test_without_a_project_of_ours_it_is_that_of_gclouds_own_configuration(tmp_path: Path) -> None:
    words = recorded(tmp_path, "gcloud")
    assert image(tmp_path, "cloud", VERTEX_IMAGE="registry/mine:3").returncode == 0
    assert words.read_text() == "builds submit --config=.vertex/cloudbuild.json .\n"


@pytest.mark.parametrize(("fails", "count"), [("build", 1), ("run", 2), ("push", 3)])
def test_where_the_engine_fails_its_exit_code_is_ours_and_nothing_follows(folder: Path, fails: str, count: int) -> None:
    words = recorded(folder, "docker", f'test "$1" != {fails} || {{ echo broken >&2; exit 125; }}')
    done = image(folder, "push")
    assert done.returncode == 125
    assert done.stderr.rstrip() == "broken"
    assert len(words.read_text().splitlines()) == count


def test_the_image_may_be_named_by_a_flag_or_a_variable_and_must_be_named(tmp_path: Path) -> None:
    words = recorded(tmp_path, "podman")
    done = image(tmp_path)
    assert done.returncode == 1
    assert done.stderr.startswith("the image isn't set; add --image, set VERTEX_IMAGE, or write image = ")
    assert image(tmp_path, VERTEX_IMAGE="registry/mine:3").returncode == 0
    assert "--tag=registry/mine:3 " in words.read_text()
    assert image(tmp_path, "--image", "registry/mine:4", VERTEX_IMAGE="registry/mine:3").returncode == 0
    assert "--tag=registry/mine:4 " in words.read_text()


def test_another_word_is_refused(folder: Path) -> None:
    words = recorded(folder, "docker")
    done = image(folder, "gpu")
    assert done.returncode == 1
    cure = "put docker build options after a lone --, as in -- --build-arg A=1"
    assert done.stderr == f"gpu isn't cpu, push, or cloud; {cure}\n"
    assert not words.exists()


def test_ctrl_c_waits_for_gcloud_which_cancels_the_build(folder: Path) -> None:
    takes_its_time = "trap '/bin/sleep 1; : > cancelled; exit 3' INT; : > ready; while :; do /bin/sleep 0.1; done"
    recorded(folder, "gcloud", takes_its_time)
    command = [sys.executable, "-m", "vertex_launch", "image", "cloud"]
    running = subprocess.Popen(
        command, cwd=folder, env=alone(folder), text=True, stderr=subprocess.PIPE, start_new_session=True
    )
    assert eventually((folder / "ready").exists)
    os.killpg(running.pid, signal.SIGINT)  # as a terminal does
    _, said = running.communicate(timeout=DEADLINE)
    assert (running.returncode, said) == (3, "")
    assert (folder / "cancelled").exists()


def test_ctrl_c_while_gcloud_starts_waits_for_it_too(folder: Path) -> None:
    recorded(folder, "gcloud", "kill -INT $PPID; /bin/sleep 0.5; exit 3")
    done = image(folder, "cloud")
    assert (done.returncode, done.stderr) == (3, "")

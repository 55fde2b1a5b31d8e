"""The sessions of a generated project, as a person at a terminal uses them."""

import json
import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path

from tests.conftest import bake
from tests.launch.running import DEADLINE, deadline

# Takes longer to end than nox would wait by itself.
SLOW_TO_END = """
import os, signal, time
signal.signal(signal.SIGTERM, lambda *_: (time.sleep(1), os.write(1, b"ends in its own time\\n"), exit(0)))
print("it trains", flush=True)
time.sleep(600)
"""


def with_python(project: Path) -> Path:
    """The project with an environment that its noxfile takes for up to date: the Python of these tests."""
    names = ("cpu.txt", "trainer.txt", "laptop.txt")
    python = project / ".venv/bin/python"
    python.parent.mkdir(parents=True)
    python.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} "$@"\n')
    python.chmod(0o755)
    wanted = "".join((project / "requirements" / name).read_text() for name in names)
    (project / ".venv/requirements.txt").write_text(f"# Python {sys.version}\n{wanted}")
    return project


def test_ctrl_c_waits_for_the_run_which_says_how_to_resume(tmp_path: Path) -> None:
    project = with_python(bake(tmp_path).project)
    (project / "slow.yaml").write_text(f"""
workerPoolSpecs:
- machineSpec: {{machineType: n1-standard-4}}
  replicaCount: 1
  containerSpec: {{imageUri: image, command: [python, -c, {json.dumps(SLOW_TO_END)}]}}
""")
    words = [sys.executable, "-m", "nox", "--session", "local", "--", "slow.yaml"]
    running = subprocess.Popen(
        words, cwd=project, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True
    )
    assert running.stdout is not None
    with deadline():
        for line in running.stdout:
            if line.endswith("it trains\n"):
                os.killpg(running.pid, signal.SIGINT)  # as a terminal does: nox and what it runs
                break
        said, _ = running.communicate(timeout=DEADLINE)
    assert "ends in its own time" in said
    assert "interrupted; every replica was stopped" in said
    assert "run slow.yaml" in said
    assert running.returncode != 0


def recorded(folder: Path, name: str, then: str = "") -> Path:
    """A program of that name, first on the PATH: it appends its words to a file, which is returned."""
    (folder / "bin").mkdir(exist_ok=True)
    program, words = folder / "bin" / name, folder / f"{name}.txt"
    program.write_text(f'#!/bin/sh\nprintf "%s\\n" "$*" >> {shlex.quote(str(words))}\n{then}\n')
    program.chmod(0o755)
    return words


def image(project: Path, folder: Path, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """`nox -s image` where there are no programs but those of the folder, and Python's."""
    environ = {"PATH": f"{folder / 'bin'}:{Path(sys.executable).parent}", "HOME": str(folder), **variables}
    command = [sys.executable, "-m", "nox", "--session", "image", "--", *words]
    return subprocess.run(command, cwd=project, env=environ, capture_output=True, text=True, timeout=DEADLINE)


def test_google_builds_the_image_where_there_is_no_engine(tmp_path: Path) -> None:
    project = bake(tmp_path).project
    done = image(project, tmp_path)
    assert done.returncode == 1
    assert "there is no docker and no podman here; nox -s image -- cloud has Google build it" in done.stderr
    words = recorded(tmp_path, "gcloud")
    done = image(project, tmp_path, "cloud", "cpu")
    assert done.returncode == 0, done.stderr
    (said,) = words.read_text().splitlines()
    assert said.startswith("builds submit --project=my-project --config=")
    config = json.loads((project / said.split("--config=")[1].split()[0]).read_text())
    assert [name.rpartition("/")[2] for name in config["images"]] == ["distributed-training:1-cpu"]
    built, labelled = (step["args"] for step in config["steps"])
    assert "--build-arg=REQUIREMENTS=cpu.txt" in built
    docker = recorded(tmp_path, "docker", 'test "$1" = build || printf -- "--label=a=b c\\n--label=d=e\\n"')
    subprocess.run(
        ["bash", "-c", labelled[1].replace("$$", "$")], env={"PATH": f"{tmp_path / 'bin'}:/usr/bin:/bin"}, check=True
    )
    run, _, build = docker.read_text().partition("\nbuild ")
    assert run.startswith("run --rm --network=none --entrypoint=sh ")
    assert build.endswith(" --quiet . --label=a=b c --label=d=e\n")


def test_podman_builds_and_pushes_where_docker_is_not(tmp_path: Path) -> None:
    project, words = bake(tmp_path).project, recorded(tmp_path, "podman")
    done = image(project, tmp_path, "cpu", "push")
    assert done.returncode == 0, done.stderr
    assert [line.split()[0] for line in words.read_text().splitlines()] == ["build", "run", "push"]


def test_the_image_may_be_named_by_a_variable_and_must_be_named(tmp_path: Path) -> None:
    project, words = bake(tmp_path).project, recorded(tmp_path, "podman")
    settings = project / "vertex.toml"
    kept = [line for line in settings.read_text().splitlines() if not line.startswith("image = ")]
    settings.write_text("\n".join(kept))
    done = image(project, tmp_path)
    assert (done.returncode, 'vertex.toml has no line image = "..."' in done.stderr) == (1, True)
    assert image(project, tmp_path, VERTEX_IMAGE="registry/mine:3").returncode == 0
    assert "--tag=registry/mine:3 " in words.read_text()

"""The sessions of a generated project, as a person at a terminal uses them."""

import json
import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path

from launcher.tests.running import DEADLINE, deadline
from launcher.tests.test_image import alone, recorded
from tests.conftest import bake, line_count, run

# Takes longer to end than nox would wait by itself.
SLOW_TO_END = """
import os, signal, time
signal.signal(signal.SIGTERM, lambda *_: (time.sleep(1), os.write(1, b"ends in its own time\\n"), exit(0)))
print("it trains", flush=True)
while True: time.sleep(0.1)
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
  containerSpec: {{imageUri: 'image:1', command: [python, -c, {json.dumps(SLOW_TO_END)}]}}
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


def test_a_team_reads_one_page_of_python_besides_its_trainer_and_its_tests(tmp_path: Path) -> None:
    project = bake(tmp_path).project
    files = [path.relative_to(project) for path in project.rglob("*.py")]
    lines = {path: line_count(project / path) for path in files}
    assert lines[Path("noxfile.py")] <= 100
    assert sum(count for path, count in lines.items() if path.parts[0] not in ("trainer", "tests")) <= 120


def test_the_session_image_hands_its_words_to_the_launcher(tmp_path: Path) -> None:
    project, words = with_python(bake(tmp_path).project), recorded(tmp_path, "docker")
    command = [sys.executable, "-m", "nox", "--session", "image", "--", "cpu", "push", "--no-cache"]
    done = subprocess.run(command, cwd=project, env=alone(tmp_path), capture_output=True, text=True, timeout=DEADLINE)
    assert done.returncode == 0, done.stderr
    build, _, push = words.read_text().splitlines()
    assert build.startswith("build --platform=linux/amd64 ")
    assert build.endswith(f"{project.name}:1-cpu --no-cache .")
    assert push.endswith(f"/{project.name}:1-cpu")


def test_the_session_lint_checks_the_rules_of_the_house(tmp_path: Path) -> None:
    project = with_python(bake(tmp_path).project)
    (project / "house_rules.py").write_text("import os\n")
    done = run(project, sys.executable, "-m", "nox", "--session", "lint")
    assert done.returncode == 1
    assert "house_rules.py:1" in done.stdout

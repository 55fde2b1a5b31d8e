"""The sessions of a generated project, as a person at a terminal uses them."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

from tests.conftest import bake
from tests.launch.running import DEADLINE, deadline

# Takes longer to end than nox would wait by itself.
SLOW_TO_END = """
import signal, time
signal.signal(signal.SIGTERM, lambda *_: (time.sleep(2), print("ends in its own time"), exit(0)))
print("it trains", flush=True)
time.sleep(600)
"""


def with_python(project: Path) -> Path:
    """The project with an environment that its noxfile takes for up to date: the Python of these tests."""
    names = ("cpu.txt", "trainer.txt", "laptop.txt")
    python = project / ".venv/bin/python"
    python.parent.mkdir(parents=True)
    python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
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

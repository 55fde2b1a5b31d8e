"""The exit code of a TensorFlow program, however the process that trains ends, and what it imports: real processes."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.training import DEADLINE, PROJECT

EARLY = "workerpool0-0: a training process exited with code 0 before training was complete"


def start(body: str, success: str = "program.FINISHED") -> "subprocess.Popen[str]":
    """Start a program whose main part is this body."""
    imports = (
        "import os, signal, sys, time",
        "from trainer.cluster import program",
        "from trainer.vertex.errors import no_exit",
    )
    lines = (*imports, f"def main(*_):\n    {body}")
    command = [sys.executable, "-c", "\n".join((*lines, f"program.run_to_end(main, {success})"))]
    return subprocess.Popen(command, cwd=PROJECT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def ended(body: str, success: str = "program.FINISHED") -> tuple[int, str]:
    with start(body, success) as program:
        try:
            printed, _ = program.communicate(timeout=DEADLINE)
        finally:
            program.kill()
    return program.returncode, printed


@pytest.mark.parametrize(
    ("body", "code", "words"),
    [
        ("return 0", 0, ""),
        ("return 75", 75, ""),
        ("sys.exit()", 0, ""),  # as --help does, before any training
        ("sys.exit('no data')", 1, "no data"),
        ("raise KeyError('labels')", 1, "KeyError: 'labels'"),
        ("os.kill(os.getpid(), signal.SIGKILL)", 137, ""),
        ("os._exit(0)", 1, EARLY),
        ("\n    with no_exit('workerpool0-0'): sys.exit()", 1, EARLY),
    ],
)
def test_a_program_ends_with_0_only_after_its_work(body: str, code: int, words: str) -> None:
    found, printed = ended(body)
    assert found == code, printed
    assert words in printed


def test_a_loop_of_ones_own_may_end_itself_with_0() -> None:
    assert ended("os._exit(0)", success="0") == (0, "")


def test_sigterm_reaches_the_process_that_trains() -> None:
    with start("print('trains', flush=True)\n    while True: time.sleep(0.1)") as program:
        try:
            assert program.stdout
            assert program.stdout.readline() == "trains\n"
            program.send_signal(signal.SIGTERM)
            printed = program.communicate(timeout=DEADLINE)[0]
        finally:
            program.kill()
    assert program.returncode == 143
    assert "stopped by SIGTERM" in printed


def test_a_sigterm_that_arrives_before_the_wait_for_the_child_reaches_the_child() -> None:
    script = """
import os, signal, time
from trainer.cluster import program
signal.pthread_sigmask(signal.SIG_BLOCK, program.EVENTS)
if not (child := os.fork()):
    signal.pthread_sigmask(signal.SIG_UNBLOCK, program.EVENTS)
    time.sleep(1000)
signal.raise_signal(signal.SIGTERM)
print(program.exit_code(child))
"""
    done = subprocess.run([sys.executable, "-c", script], cwd=PROJECT, capture_output=True, text=True, timeout=DEADLINE)
    assert done.stdout == "-15\n", done.stderr


def test_keras_imports_the_libraries_of_its_wrappers_and_plots_when_they_are_used(tmp_path: Path) -> None:
    script = """
import os, sys
from trainer.cluster import program
program.prepare(os.environ, [])
print("keras" in sys.modules, {"sklearn", "scipy", "matplotlib"} & sys.modules.keys())
import keras, numpy
from keras.wrappers import SKLearnClassifier
SKLearnClassifier(lambda x, y: None)
keras.visualization.plot_image_gallery(numpy.zeros((1, 8, 8, 3)), value_range=(0, 1), rows=1, cols=1, path=sys.argv[1])
from keras import wrappers
print(wrappers.SKLearnClassifier is SKLearnClassifier, {"sklearn", "scipy", "matplotlib"} - sys.modules.keys())
"""
    command = [sys.executable, "-c", script, str(tmp_path / "gallery.png")]
    done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, timeout=DEADLINE)
    assert done.stdout == "True set()\nTrue set()\n", done.stderr
    assert (tmp_path / "gallery.png").stat().st_size

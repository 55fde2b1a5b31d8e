"""A process that a signal ends says so, whatever the signal has interrupted."""

import os
import signal
import subprocess
import sys

from tests.training import DEADLINE, PROJECT

TALKS = """
import os, signal
from trainer.vertex.log import say, say_last
signal.signal(signal.SIGTERM, lambda *_: (say_last("stopped"), os._exit(143)))
say("more than a pipe takes " * 10**5)
"""


def test_a_process_that_is_stopped_within_a_write_says_so_and_ends_as_it_should() -> None:
    command = [sys.executable, "-c", TALKS]
    # As in an image of Google's: that of the project sets PYTHONUNBUFFERED, with which writes are not refused.
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    process = subprocess.Popen(
        command, env=environ, cwd=PROJECT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout
        process.stdout.read(1)  # it writes; the write does not end before somebody reads the rest
        process.send_signal(signal.SIGTERM)
        printed, errors = process.communicate(timeout=DEADLINE)
    finally:
        process.kill()
        process.wait()
    assert errors == ""
    assert process.returncode == 143
    assert printed.endswith('{"severity": "INFO", "message": "stopped"}\n')

"""A process that a signal ends says so, whatever the signal has interrupted."""

import os
import signal
import subprocess
import sys

from tests.training import DEADLINE, PROJECT
from trainer.cluster.preemption import StoppedError, Told
from trainer.cluster.spec import Cluster, Node

TALKS = """
import os, signal
from trainer.vertex.log import say, say_last
signal.signal(signal.SIGTERM, lambda *_: (say_last("stopped"), os._exit(143)))
say("more than a pipe takes " * 10**5)
"""

NAMES = ("workerpool0-0", "workerpool1-1")


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


def test_a_signal_is_noted_within_the_block_and_ends_the_process_again_behind_it() -> None:
    before, notice = signal.getsignal(signal.SIGUSR1), Told(signal.SIGUSR1)
    with notice:
        os.kill(os.getpid(), signal.SIGUSR1)
    assert notice.told
    assert signal.getsignal(signal.SIGUSR1) == before


def test_the_replica_that_was_told_to_end_is_named_by_all_others_whatever_processes_each_has() -> None:
    nodes = tuple(Node(name, "localhost:1") for name in ("workerpool0-0", "workerpool1-0", "workerpool1-1"))
    by = Cluster(nodes).node(5, size=6).name
    others, own = (StoppedError(Cluster(nodes, name), 37, told=name != nodes[0].name, by=by) for name in NAMES)
    resume = "was asked to stop; after a restart, training resumes from this step"
    assert str(others) == f"workerpool0-0: saved step 37, because workerpool1-1 {resume}"
    assert str(own) == f"workerpool1-1: saved step 37, because this replica {resume}"
    assert others.event == own.event == {"saved": 37, "asked_to_stop": "workerpool1-1"}
    assert (others.exit_code, own.exit_code) == (75, 143)

"""Where a process hangs: by stacks as faulthandler writes them, and of a real process that is asked."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.training import PROJECT
from trainer.cluster import stuck
from vertex_launch.local.running.faults import IN_PYTHON

LIBRARIES = "/usr/lib/python3.11"
TORCH = f"{LIBRARIES}/site-packages/torch"
GRAIN = f"{LIBRARIES}/site-packages/grain/prefetch.py"


def thread(*frames: tuple[str, str]) -> str:
    """A thread's stack, innermost frame first: the file and the function of each."""
    lines = (f'  File "{file}", line 71 in {function}' for file, function in frames)
    return "\n".join(("Thread 0x00007f6b (most recent call first):", *lines))


def ours(name: str) -> str:
    return str(PROJECT / "trainer" / name)


LOOP = (ours("train.py"), "train"), (f"{LIBRARIES}/multiprocessing/spawn.py", "_main"), ("<string>", "<module>")
IDLE = thread((f"{LIBRARIES}/concurrent/futures/thread.py", "_worker"), (f"{LIBRARIES}/threading.py", "run"))
READS = thread((f"{LIBRARIES}/json/decoder.py", "loads"), (ours("data.py"), "decode"), (GRAIN, "_getitem"))
WAITS_FOR_DATA = thread(
    (f"{LIBRARIES}/threading.py", "wait"), (GRAIN, "next"), (ours("reports/speed.py"), "timed"), *LOOP
)
IN_BACKWARD = thread((f"{TORCH}/autograd/graph.py", "_engine_run_backward"), (f"{TORCH}/_tensor.py", "backward"), *LOOP)
WRITER_WAITS = thread((f"{TORCH}/distributed/distributed_c10d.py", "barrier"), (ours("cluster/world.py"), "wait"))
WAITS_FOR_WRITER = thread((f"{LIBRARIES}/concurrent/futures/_base.py", "result"), (ours("saver.py"), "save"), *LOOP)


@pytest.mark.parametrize(
    ("threads", "place"),
    [
        ([IDLE, thread((ours("model.py"), "losses"), *LOOP)], "losses (trainer/model.py:71)"),
        ([thread((f"{TORCH}/nn/modules/linear.py", "forward"), (ours("model.py"), "forward"), *LOOP)], "forward (t"),
        ([IDLE, READS, IDLE, WAITS_FOR_DATA], "decode (trainer/data.py:71)"),
        ([IDLE, WAITS_FOR_DATA], "timed (trainer/reports/speed.py:71)"),
        ([thread((f"{LIBRARIES}/site-packages/trainer/data.py", "decode"))], "decode ("),
        # These wait for the others.
        ([READS, IN_BACKWARD], ""),
        ([IDLE, WRITER_WAITS, WAITS_FOR_WRITER], ""),
        ([IDLE], ""),
        ([], ""),
    ],
)
def test_the_place_is_of_our_code_and_none_where_a_process_waits_for_others(threads: list[str], place: str) -> None:
    found = stuck.place(threads)
    assert found.startswith(place)
    assert bool(found) == bool(place)


# Python's lock is held from the moment the word comes: it is C code that prints it, and then waits for its input.
HANGS = """
import ctypes, sys
sys.path.insert(0, {project!r})
from trainer.cluster import stuck
stuck.took(30)
ctypes.PyDLL(None).system(b"echo up; exec cat")
"""


def test_the_signal_is_none_by_which_the_launcher_rehearses_a_fault() -> None:
    assert stuck.ASK not in IN_PYTHON.values()


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has files that exist in memory")
def test_a_process_in_c_code_that_never_returns_is_told_with_its_stack(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    program = tmp_path / "hangs.py"
    program.write_text(HANGS.format(project=str(PROJECT)))
    with subprocess.Popen([sys.executable, str(program)], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout
            process.stdout.readline()
            answer = stuck.ask("workerpool1-0")
        finally:
            process.kill()
    assert answer[: stuck.WIDTH].strip() == "30"
    assert answer[stuck.WIDTH :].partition(": ")[0].endswith("/hangs.py:6)")
    assert answer.endswith(" s, since step 30")
    assert 'hangs.py\\", line 6 in <module>' in capsys.readouterr().out

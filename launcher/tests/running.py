"""Where the launcher under test lies, small jobs for it, and what tests ask of processes."""

import contextlib
import shlex
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import vertex_launch

SOURCE = Path(vertex_launch.__file__).parents[1]  # on the PYTHONPATH of every command that a test starts
SETTINGS = 'project = "p"\nregion = "us-central1"\nbucket = "b"\nimage = "image:1"\n[env]\nPYTHONPATH = true\n'
# As the template has them, with what cookiecutter is to fill in. Tests of a baked project import this, too, whose own
# conftest is another one.
TEMPLATE = Path(__file__).resolve().parents[2] / "{{cookiecutter.project_slug}}"
JOBS = sorted(
    file
    for place in ("", "parts", "frameworks/pytorch", "frameworks/pytorch/parts")
    for file in (TEMPLATE / place).glob("jobs/*.yaml")
)


def job(**container: Any) -> dict[str, Any]:
    """A CustomJobSpec of one replica that runs this container."""
    pool = {
        "machineSpec": {"machineType": "n1-standard-4"},
        "replicaCount": 1,
        "containerSpec": {"imageUri": "image", **container},
    }
    return {"workerPoolSpecs": [pool], "baseOutputDirectory": {"outputUriPrefix": "gs://b/run"}}


def write_program(path: Path, text: str) -> None:
    """Write a Python program that starts by its name; `#!` alone cannot name an interpreter whose path has a space."""
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"""#!/bin/sh\n'''exec' {shlex.quote(sys.executable)} "$0" "$@"\n' '''\n{text}""", encoding="utf-8")
    path.chmod(0o755)


def processes(*words: str) -> list[int]:
    """The processes of this machine whose environment or command line has all these words (Linux)."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            text = (folder / "environ").read_bytes() + (folder / "cmdline").read_bytes()
            if all(word.encode() in text for word in words):
                found.append(int(folder.name))
    return found


DEADLINE = 120.0  # seconds; a guard against hanging, many times what anything here needs where all cores are busy


def eventually(condition: Callable[[], bool], seconds: float = DEADLINE) -> bool:
    """True as soon as the condition holds, false if it does not in time."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.1)
    return True


def until(path: Path, word: str = "") -> str:
    """Two lines of Python that wait for a file, and for a word in it."""
    return f"""import pathlib, time
while not (p := pathlib.Path({str(path)!r})).exists() or {word!r} not in p.read_text(): time.sleep(0.05)"""


def ends_together(replicas: int) -> str:
    """Lines of Python: the chief goes on once so many replicas are here, the others wait until they are ended.

    Else a worker that starts late is ended with the job before it has said a word, and of one that leaves long before
    the chief the log tells that.
    """
    return f"""
import os, pathlib, time
folder = pathlib.Path(os.environ["GCS_MOUNT"], "here", os.environ["CLOUD_ML_JOB_ID"])
folder.mkdir(parents=True, exist_ok=True)
(folder / os.environ["RANK"]).touch()
while os.environ["RANK"] != "0" or len([*folder.glob("[0-9]")]) < {replicas}: time.sleep(0.05)
"""


def while_fresh(text: str) -> str:
    """What was said, without the notice that the facts about the service are old."""
    return "".join(line for line in text.splitlines(True) if "the facts date from" not in line)


@contextlib.contextmanager
def deadline(seconds: float = DEADLINE) -> Iterator[None]:
    """A test that hangs fails."""
    before = signal.signal(signal.SIGALRM, lambda *_: pytest.fail(f"still running after {seconds:g} s"))
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)

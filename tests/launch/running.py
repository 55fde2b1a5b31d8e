"""Where the launcher under test lies, small jobs for it, and what tests ask of processes."""

import contextlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import vertex_launch

PROJECT = Path(vertex_launch.__file__).parents[1]  # on the PYTHONPATH of every command that a test starts
SETTINGS = 'project = "p"\nregion = "us-central1"\nbucket = "b"\nimage = "image:1"\n[env]\nPYTHONPATH = true\n'
# As the template has them, with what cookiecutter is to fill in.
JOBS = sorted([*PROJECT.glob("jobs/*.yaml"), *PROJECT.glob("frameworks/pytorch/jobs/*.yaml")])


def job(**container: Any) -> dict[str, Any]:
    """A CustomJobSpec of one replica that runs this container."""
    pool = {
        "machineSpec": {"machineType": "n1-standard-4"},
        "replicaCount": 1,
        "containerSpec": {"imageUri": "image", **container},
    }
    return {"workerPoolSpecs": [pool], "baseOutputDirectory": {"outputUriPrefix": "gs://b/run"}}


def processes(*words: str) -> list[int]:
    """The processes of this machine whose environment or command line has all these words (Linux)."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            text = (folder / "environ").read_bytes() + (folder / "cmdline").read_bytes()
            if all(word.encode() in text for word in words):
                found.append(int(folder.name))
    return found


def eventually(condition: Callable[[], bool], seconds: float = 10) -> bool:
    """True as soon as the condition holds, false if it does not in time."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.1)
    return True

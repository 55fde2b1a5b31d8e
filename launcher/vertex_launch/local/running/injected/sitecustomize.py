"""Lets the launcher rehearse a program's own faults: SIGXCPU ends this Python with 0, SIGUSR2 raises an exception.

Only a replica with such a fault in --fault has this folder on its PYTHONPATH.
"""

import os
import signal
import sys
from importlib.machinery import PathFinder
from importlib.util import module_from_spec


def _leave(*_: object) -> None:
    os._exit(0)


def _fail(*_: object) -> None:
    raise RuntimeError("rehearsed by --fault")


def _run_hidden() -> None:
    """Run the sitecustomize of the image, which this one hides."""
    spec = PathFinder.find_spec("sitecustomize", [path for path in sys.path if path != os.path.dirname(__file__)])
    if spec and spec.loader:
        spec.loader.exec_module(module_from_spec(spec))


signal.signal(signal.SIGXCPU, _leave)
signal.signal(signal.SIGUSR2, _fail)
_run_hidden()

"""Handles the signals that simulate program faults.

SIGXCPU makes Python exit with code 0, and SIGUSR2 raises an exception.

The launcher adds this file's folder to a replica's PYTHONPATH only if `--fault` requests a program fault for the
replica.
"""

import os
import signal
import sys
from importlib.machinery import PathFinder
from importlib.util import module_from_spec


def _leave(*_: object) -> None:
    os._exit(0)


def _fail(*_: object) -> None:
    raise RuntimeError("simulated by --fault")


def _run_hidden() -> None:
    """Run the image's sitecustomize module, which this module shadows."""
    spec = PathFinder.find_spec("sitecustomize", [path for path in sys.path if path != os.path.dirname(__file__)])
    if spec and spec.loader:
        spec.loader.exec_module(module_from_spec(spec))


signal.signal(signal.SIGXCPU, _leave)
signal.signal(signal.SIGUSR2, _fail)
_run_hidden()

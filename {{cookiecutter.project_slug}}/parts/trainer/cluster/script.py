"""Finds your own script or module before the roll call at startup, and then runs it as `__main__`."""

import os
import resource
import runpy
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import util
from pathlib import Path

from trainer.vertex import nccl
from trainer.vertex.errors import TrainerError
from trainer.vertex.log import say

USAGE = "python -m trainer.cluster.run [-m] SCRIPT ARGS"
LOG_SECONDS = 300.0  # after which NCCL has chosen its algorithm


class ScriptError(TrainerError):
    """The error for a script that is missing or that exited with a nonzero code."""

    def __init__(self, text: str, exit_code: int = 1) -> None:
        self.exit_code = exit_code
        super().__init__(text)


@dataclass(frozen=True)
class Script:
    """A script file or a module (after -m), and its arguments."""

    name: str
    args: tuple[str, ...] = ()
    is_module: bool = False

    def run(self) -> None:
        """Run the script as `__main__`. Raises ScriptError if the script exits with a nonzero code."""
        sys.argv = [self.name, *self.args]
        try:
            if self.is_module:
                runpy.run_module(self.name, run_name="__main__", alter_sys=True)
            else:
                sys.path.insert(0, str(Path(self.name).resolve().parent))
                runpy.run_path(self.name, run_name="__main__")
        except SystemExit as end:
            if isinstance(end.code, str):
                raise ScriptError(end.code) from None
            if end.code:
                raise ScriptError(f"{self.name} exited with code {end.code}", end.code) from None

    def run_with_reducers(self, count: int, *, is_chief: bool) -> None:
        """Run the script. In the chief's process, report whether NCCL uses the reducers, based on NCCL's log."""
        ended = threading.Event()
        teller = threading.Thread(target=_tell, args=(count, is_chief, ended), daemon=True)
        teller.start()
        self.run()
        ended.set()
        teller.join()


def require_joined(joined: bool, processes: int, fix: str) -> None:
    """Raise ScriptError if several processes ran the script and exited with code 0 without joining each other.

    Don't raise an error if the script mainly ran other programs, because those programs might have joined each other.
    """
    own, others = (resource.getrusage(who).ru_utime for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    if processes > 1 and not joined and others < own / 2:
        raise ScriptError(f"{processes} processes ran, but didn't form one world, so each one trained alone. {fix}")


def find(argv: Sequence[str]) -> Script:
    """Return the script or module that the command line specifies. Raises ScriptError if neither is found."""
    is_module, words = argv[:1] == ["-m"], argv[argv[:1] == ["-m"] :]
    if not words:
        raise ScriptError(f"the command doesn't specify a script; use {USAGE}")
    name, *args = words
    if not (_has_module(name) if is_module else Path(name).is_file()):
        kind = "module" if is_module else "script"
        raise ScriptError(f"{name}: no such {kind} in {Path.cwd()}; the image contains only the files in trainer/")
    return Script(name, tuple(args), is_module)


def _has_module(name: str) -> bool:
    try:
        return util.find_spec(name) is not None
    except (ImportError, ValueError):  # its parent isn't a package
        return False


def _tell(reducers: int, is_chief: bool, ended: threading.Event) -> None:
    """Wait until NCCL has written its log or the script has ended, and then report whether NCCL uses the reducers.

    Then discard all further NCCL log lines. Otherwise, NCCL's log would fill the disk within days.
    """
    while not ended.wait(LOG_SECONDS) and not nccl.read_log(os.environ).is_ours:
        pass
    if is_chief:
        use = nccl.judge(nccl.read_log(os.environ), reducers)
        state = {True: "in use", False: "idle", None: "not known"}[use.used]
        say(use.sentence, "INFO" if use.used else "WARNING", reducers=state)
    nccl.end_log(os.environ)

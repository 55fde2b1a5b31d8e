"""The command that a person types to go on after Ctrl-C."""

import shlex
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from vertex_launch import program
from vertex_launch.spec import Job
from vertex_launch.state_dir import StateDir, output_folder

FRESH = "--fresh"


def advice(job: Job, state_dir: StateDir, argv: Sequence[str], environ: Mapping[str, str]) -> str:
    """The command that goes on with an interrupted run, and whether it resumes."""
    same = command(argv, environ)
    folder = output_folder(job, state_dir)
    if folder is None:
        return f"the job names no output folder, so it starts from its first step with: {same}"
    if not any((folder / "checkpoints").glob("*")):
        return f"no checkpoint is there yet; start again with: {same}"
    return f"resume with: {same}"


def command(argv: Sequence[str], environ: Mapping[str, str], fresh: bool = False) -> str:
    """Repeat the command, as a shell takes it; it starts over with `fresh`, and resumes without.

    Args:
        argv: of this process, its own name first.
    """
    arguments = argv[1:]
    end = arguments.index("--") if "--" in arguments else len(arguments)
    kept = [word for word in arguments[:end] if word != FRESH] + [FRESH] * fresh
    if program.name(argv) == program.SCRIPT:
        start = [_shortest(Path(argv[0]), environ)]
    else:
        start = [_shortest(Path(sys.executable), environ), "-m", "vertex_launch"]
    return shlex.join([*start, *kept, *arguments[end:]])


def _shortest(file: Path, environ: Mapping[str, str]) -> str:
    """The shortest name under which the user's shell finds a program."""
    for name in ("python", file.name):
        if shutil.which(name, path=environ.get("PATH", "")) == str(file):
            return name
    return str(file.relative_to(Path.cwd()) if file.is_relative_to(Path.cwd()) else file)

"""What a person types to go on after Ctrl-C."""

import shlex
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from vertex_launch.spec import Job
from vertex_launch.state_dir import StateDir, output_folder

FRESH = "--fresh"


def advice(job: Job, state_dir: StateDir, arguments: Sequence[str], environ: Mapping[str, str]) -> str:
    """The command that goes on with an interrupted run, and whether it resumes."""
    same = command(arguments, environ)
    folder = output_folder(job, state_dir)
    if folder is None:
        return f"the job names no output folder, so it starts from its first step with: {same}"
    if not any((folder / "checkpoints").glob("*")):
        return f"no checkpoint is there yet; start again with: {same}"
    return f"resume with: {same}"


def command(arguments: Sequence[str], environ: Mapping[str, str], fresh: bool = False) -> str:
    """The same command once more, as a shell takes it; it starts over with `fresh`, and resumes without.

    Args:
        arguments: of this program.
    """
    end = arguments.index("--") if "--" in arguments else len(arguments)
    own = [word for word in arguments[:end] if word != FRESH] + [FRESH] * fresh
    return shlex.join([_python(environ), "-m", "vertex_launch", *own, *arguments[end:]])


def _python(environ: Mapping[str, str]) -> str:
    """The Python that runs this, by the shortest name under which the user's shell finds it."""
    here = Path(sys.executable)
    if shutil.which("python", path=environ.get("PATH", "")) == str(here):
        return "python"
    return str(here.relative_to(Path.cwd()) if here.is_relative_to(Path.cwd()) else here)

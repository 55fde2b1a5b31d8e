"""The training loops of launcher/docs/loops.md, each as a job of three replicas that loses one and resumes.

python -m tests.loops PYTHON [TITLE ...] prints transcripts; PYTHON is an interpreter that has the loops' libraries.
"""

import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from launcher.tests.running import SOURCE
from tests.conftest import ROOT

PAGE = (ROOT / "launcher/docs/loops.md").read_text(encoding="utf-8")
FOLDER = ROOT / "launcher/docs/loops"
ROW = re.compile(r"^\| (.+?) \| \[(\w+\.py)\]\(.+?\) \| `\[(.+?)\]` \| (.+) \|$", re.MULTILINE)
SECONDS = 900  # after which a job counts as one that hangs


@dataclass(frozen=True)
class Loop:
    """A row of the page's table."""

    title: str
    script: str
    command: str
    requirements: tuple[str, ...]

    def __str__(self) -> str:
        return self.title

    @property
    def framework(self) -> str:
        return "tensorflow" if self.title == "TensorFlow" else "pytorch"

    def write(self, folder: Path) -> Path:
        """Copy the files into a folder, with this loop's command in the job."""
        shutil.copytree(FOLDER, folder, dirs_exist_ok=True)
        job = (FOLDER / "job.yaml").read_text(encoding="utf-8")
        (folder / "job.yaml").write_text(re.sub(r"(?<=command: \[).+(?=\])", self.command, job), encoding="utf-8")
        return folder


def loops() -> list[Loop]:
    """Return the loops of the page."""
    return [
        Loop(title, script, command, tuple(re.findall("`(.+?==.+?)`", tested)))
        for title, script, command, tested in ROW.findall(PAGE)
    ]


def launch(python: Path, folder: Path, *words: str) -> "subprocess.CompletedProcess[str]":
    """Run a command of the launcher in a folder; stdout holds both streams."""
    path, pipe = os.pathsep.join((str(python.parent), os.environ["PATH"])), subprocess.PIPE
    env = {**os.environ, "PATH": path, "PYTHONPATH": str(SOURCE), "OMP_NUM_THREADS": "1"}
    command = [str(python), "-m", "vertex_launch", *words]
    return subprocess.run(
        command, cwd=folder, env=env, text=True, timeout=SECONDS, stdout=pipe, stderr=subprocess.STDOUT
    )


def lose_one(python: Path, folder: Path) -> "subprocess.CompletedProcess[str]":
    """Run the folder's job as the page says: it loses a worker."""
    (words,) = re.findall("^vertex-launch (run .+)$", PAGE, re.MULTILINE)
    return launch(python, folder, *shlex.split(words))


def main(python: str, *titles: str) -> None:
    for loop in loops():
        if not titles or loop.title in titles:
            with tempfile.TemporaryDirectory() as folder:
                done = lose_one(Path(python).absolute(), loop.write(Path(folder)))
            print(f"\n## {loop.title}: exit code {done.returncode}\n\n{done.stdout}", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])

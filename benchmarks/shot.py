"""Draw a picture of the terminal output of a local training run: benchmarks/shot.py PROJECT PICTURE.svg."""

import re
import subprocess
import sys
from pathlib import Path

from rich.console import Console
from rich.highlighter import RegexHighlighter
from rich.terminal_theme import MONOKAI
from rich.theme import Theme

WIDTH = 96  # columns; longer lines end with an ellipsis
REPORT = re.compile(r"step \d+/\d+  loss")
DEADLINE = 600  # seconds


class Log(RegexHighlighter):
    """The colors of a run's log lines: replica names, the figures of reports, and the end of the job."""

    base_style = "log."
    highlights = (
        r"^(?P<replica>\[[\w-]+\])",
        r"(?P<figure>\b\d+(\.\d+)?%?(?= |$))",
        r"(?P<end>^Job succeeded.*)",
        r"^(?P<command>\$ .*)",
    )


COLORS = Theme({"log.replica": "cyan", "log.figure": "none", "log.end": "bold green", "log.command": "bold"})


def output(project: Path) -> list[str]:
    """Return the output lines of a new run with three replicas."""
    command = (".venv/bin/vertex-launch", "run", "jobs/workers.yaml", "--fresh", "--max-replicas", "3")
    run = subprocess.run(command, cwd=project, check=True, capture_output=True, text=True, timeout=DEADLINE)
    return run.stdout.splitlines()


def shortened(lines: list[str]) -> list[str]:
    """Return the lines with only the first two reports and the last report."""
    reports = [i for i, line in enumerate(lines) if REPORT.search(line)]
    return [*lines[: reports[2]], "  ...", *lines[reports[-1] :]]


def without_fonts(picture: str) -> str:
    """Return the picture with the viewer's own monospaced font, so that the picture doesn't load fonts from the web."""
    return re.sub(r"@font-face \{.*?\}\s*", "", picture, flags=re.DOTALL)


def main(project: Path, picture: Path) -> None:
    """Run the project's job and write the picture."""
    console = Console(record=True, width=WIDTH, file=sys.stderr, highlighter=Log(), theme=COLORS, force_terminal=True)
    for line in ("$ nox -s local", *shortened(output(project))):
        console.print(line, no_wrap=True, overflow="ellipsis", markup=False)
    svg = console.export_svg(title="distributed-training", theme=MONOKAI, unique_id="demo")
    picture.write_text(without_fonts(svg) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))

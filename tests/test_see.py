"""Every command of docs/see.md prints the lines that the page shows, figures aside."""

import os
import re
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.conftest import ROOT, bake, give_environment, run

PAGE = (ROOT / "docs/see.md").read_text(encoding="utf-8")
ROW = re.compile(r"^\| ([^|]+) \| (`.+?`) \| (`.+?`) \| [^|]+ \|$", re.MULTILINE)
CODE = re.compile(r"`([^`]+)`")
FIGURE = re.compile(r"(?<![a-zA-Z])\d[\d.]*%?")  # not that of workerpool0


class Row(NamedTuple):
    framework: str
    concept: str
    commands: list[str]
    printed: list[str]


def rows() -> list[Row]:
    found = []
    for section in PAGE.split("\n## ")[1:]:
        framework = "tensorflow" if section.startswith("TensorFlow") else "pytorch"
        for concept, commands, printed in ROW.findall(section.replace(r"\|", "\0")):
            lines = [CODE.findall(cell.replace("\0", "|")) for cell in (commands, printed)]
            found.append(Row(framework, concept, *lines))
    return found


def pattern(line: str) -> str:
    """Return a pattern for a line, in which `...` stands for anything and a figure for any figure."""
    parts = (FIGURE.sub("\0", part) for part in line.split("..."))
    return ".*".join(re.escape(part).replace("\0", r"\d[\d.]*%?") for part in parts)


@pytest.mark.slow
@pytest.mark.proof
@pytest.mark.parametrize("row", rows(), ids=lambda row: row.concept)
def test_a_command_prints_what_the_page_shows(row: Row, tmp_path: Path) -> None:
    if "horovod" in "".join(row.commands):
        pytest.skip("Horovod takes minutes to build; its row was seen by hand")
    project = bake(tmp_path, framework=row.framework).project
    give_environment(project, row.framework, tmp_path)
    path = f"{project / '.venv/bin'}{os.pathsep}{os.environ['PATH']}"
    said = "".join(run(project, "bash", "-c", command, PATH=path).stdout for command in row.commands)
    assert [line for line in row.printed if not re.search(pattern(line), said)] == [], said


def test_every_row_of_the_page_is_read() -> None:
    assert len(rows()) == len(re.findall(r"^\| .*`", PAGE, re.MULTILINE))

"""A project with a change, for runs that a test wants slow at one place."""

import shutil
from pathlib import Path

import pytest

from tests import training


def change(folder: Path, file: str, lines: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let runs of this test take their code from a copy in `folder`, with these lines behind those of the file."""
    if folder != training.PROJECT:
        shutil.copytree(training.PROJECT / "trainer", folder / "trainer")
    with (folder / file).open("a", encoding="utf-8") as text:
        text.write(lines)
    monkeypatch.setattr(training, "PROJECT", folder)

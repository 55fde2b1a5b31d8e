"""Commands of launcher/docs/cloud.md print every line that it shows, figures aside."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from launcher.tests.vertex import Service, service
from tests.training import DEADLINE, PROJECT
from trainer.data import EXAMPLES

pytestmark = [pytest.mark.proof, pytest.mark.skipif("digits" not in EXAMPLES, reason="the page has a run of images")]

PAGE = next(filter(Path.exists, (Path(folder, "launcher/docs/cloud.md") for folder in sys.path)))
BLOCK = re.compile(r"^```console\n(.*?)^```$", re.MULTILINE | re.DOTALL)
# What differs from one run to the next: an address, a folder, a label, a duration, a figure.
FIGURES = (
    (r"  \d+% waiting for data", ""),
    (r"http://127\.0\.0\.1:\d+", "ADDRESS"),
    (r"\S*\.\.\./|/\S*/\.vertex/\S*/", ".../"),
    (r"=[0-9a-f]{12}\b", "=LABEL"),
    (r"(\d+ h )?(\d+ min )?\b\d+ s\b", "TIME"),
    (r"-?\d[\d.]*(e-\d+)?", "0"),
    (r"waited TIME(, |$)", ""),
    (r" +", " "),
)


def steps() -> list[tuple[str, list[str]]]:
    """Each command of the page, and the lines that it shows."""
    found: list[tuple[str, list[str]]] = []
    for line in "".join(BLOCK.findall(PAGE.read_text(encoding="utf-8"))).splitlines():
        if line.startswith("$ "):
            found.append((line[2:], []))
        else:
            found[-1][1].append(line)
    return found


def bare(line: str) -> str:
    """Without figures and such; an exit code stays."""
    if line.startswith("exit code "):
        return line
    for pattern, name in FIGURES:
        line = re.sub(pattern, name, line)
    return line.strip()


@pytest.fixture
def vertex(tmp_path: Path) -> Iterator[Service]:
    """The service, and in its folder the project, as git knows it."""
    (tmp_path / "trainer").symlink_to(PROJECT / "trainer")
    (tmp_path / "jobs").mkdir()
    (tmp_path / "jobs/smoke.yaml").write_text((PROJECT / "jobs/smoke.yaml").read_text())
    with service(tmp_path) as running:
        (tmp_path / "vertex.toml").write_text((PROJECT / "vertex.toml").read_text())
        (tmp_path / ".gitignore").write_text("*\n")
        for words in ("init -q", "-c user.name=a -c user.email=a@b commit -q --allow-empty -m first"):
            subprocess.run(("git", *words.split()), cwd=tmp_path, check=True)
        yield running


def test_the_transcript_is_what_a_person_sees(vertex: Service) -> None:
    paths = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environ = os.environ | {"PYTHONPATH": str(PROJECT), "VERTEX_ENDPOINT": vertex.endpoint, "PATH": paths}
    for command, lines in steps():
        done = subprocess.run(
            ("bash", "-c", command),
            cwd=vertex.folder,
            env=environ,
            capture_output=True,
            text=True,
            timeout=DEADLINE,
        )
        said = done.stdout + done.stderr
        there = [bare(line) for line in said.splitlines()]
        missing = [line for line in lines if line != "..." and bare(line) not in there]
        assert missing == [], f"{command}\n{said}"

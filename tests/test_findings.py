"""Each script of findings/ has the form that CONTRIBUTING.md states. The scripts themselves run outside CI."""

import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.conftest import ROOT

SCRIPTS = sorted((ROOT / "findings").iterdir())
HEADER = ("Expected: .+[.]", "Happens: .+[.]", "Versions: .*[0-9].*", r"Date: \d{4}-\d\d-\d\d", "Matters: .+[.]")
FORBIDDEN = r"https?://(?!127\.0\.0\.1)|--(?:extra-)?index-url|--find-links|(?<![\w}\"])/(?:home|opt|root|Users|work)/"


def test_there_are_at_least_eight() -> None:
    assert len(SCRIPTS) >= 8


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.name)
def test_a_finding_has_the_stated_form(script: Path) -> None:
    text = script.read_text(encoding="utf-8")
    shebang, *header, strict = text.splitlines()[:7]
    assert (script.suffix, shebang, strict) == (".sh", "#!/usr/bin/env bash", "set -euo pipefail")
    assert all(re.fullmatch(f"# {form}", line) for form, line in zip(HEADER, header, strict=True)), header
    assert os.access(script, os.X_OK)
    assert not re.search(FORBIDDEN, text)
    installs = re.findall(r"pip\" install ((?:[^\n]|\\\n)+)", text.replace("\\\n", " "))
    packages = [word for line in installs for word in line.split() if not word.startswith("-")]
    assert packages
    assert all("==" in package for package in packages), packages
    started = [line for line in text.splitlines() if re.search(r"python3 |/venv/bin/", line)]
    assert all("timeout " in line for line in started), started
    assert "Changed: " in text, "the sentence that a script prints before it fails"
    subprocess.run(["bash", "-n", script], check=True, timeout=60)

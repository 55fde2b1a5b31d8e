"""The page of the proofs says what pytest recorded, and nothing of what failed."""

import re
import sys
from pathlib import Path

import pytest

from tests import proofs_page
from tests.conftest import run

TESTS = """
import pytest

@pytest.mark.parametrize("count", [1, 2, 3])
def test_counts_are_counted(count): pass

def test_an_image_is_built(record_property): record_property("figures", "built in 40 s")

@pytest.mark.skip(reason="needs a cluster")
def test_a_cluster_trains(): pass
"""
FAILING = "def test_it_fails(): assert False\n"


def record(folder: Path, name: str, tests: str) -> None:
    """Run these tests and leave the record of them as `name`.xml."""
    file = folder / f"test_{name}.py"
    file.write_text(tests)
    command = ("-m", "pytest", "-p", "no:cacheprovider", f"--junitxml={name}.xml", str(file))
    run(folder, sys.executable, *command, PYTEST_DISABLE_PLUGIN_AUTOLOAD="1")


def test_the_page_says_what_held_how_often_and_what_was_left_out(tmp_path: Path) -> None:
    for name in ("template", "two"):
        record(tmp_path, name, TESTS)
    lines = proofs_page.page(tmp_path, tmp_path).splitlines()
    assert [line for line in lines if line.startswith("## ")] == ["## template: test_template", "## two: test_two"]
    assert sum(re.match(r"\| counts are counted \| 3 \| [0-9.]+ \|", line) is not None for line in lines) == 2
    assert sum(line.startswith("| a cluster trains (skipped: needs a cluster) | 0 | ") for line in lines) == 2
    assert sum(line.startswith("| an image is built (built in 40 s) | 1 | ") for line in lines) == 2
    assert "All 8 cases together took" in " ".join(lines)
    assert " cores with " in lines[2]


def test_a_record_with_a_failure_makes_no_page(tmp_path: Path) -> None:
    record(tmp_path, "one", FAILING)
    with pytest.raises(ValueError, match="test_it_fails failed"):
        proofs_page.page(tmp_path, tmp_path)

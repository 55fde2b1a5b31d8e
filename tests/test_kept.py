"""A proof that passed on this very tree is not run again; the record says what passed, and nothing of what failed."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests import proofs_page
from tests.conftest import ROOT, run
from tests.kept import OUTER, cases

TESTS = """
import os
from pathlib import Path
import pytest

@pytest.mark.parametrize("count", [1, 2, 3])
def test_counts_are_counted(count): pass

def test_an_image_is_built(record_property): record_property("figures", "built in 40 s")

def test_it_may_be_cut_off_or_fail():
    if "CUT" in os.environ: os._exit(9)
    if "EDIT" in os.environ: Path("edited").touch()
    assert "FAIL" not in os.environ

@pytest.mark.skip(reason="needs a cluster")
def test_a_cluster_trains(): pass
"""


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A clone with these tests, all committed."""
    (tmp_path / "test_one.py").write_text(TESTS)
    (tmp_path / ".gitignore").write_text("records/\n__pycache__/\n")
    git(tmp_path, "init", "--quiet")
    commit(tmp_path)
    return tmp_path


def git(folder: Path, *words: str) -> str:
    return subprocess.run(("git", *words), cwd=folder, check=True, capture_output=True, text=True).stdout.strip()


def commit(folder: Path) -> None:
    git(folder, "add", ".")
    git(folder, "-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "all")


def told(clone: Path, *options: str, **environ: str) -> str:
    """The last line of a run of these tests with the plug-in, without its seconds."""
    command = ("-m", "pytest", "-p", "tests.kept", "-p", "no:cacheprovider", *options)
    settings = {"PYTHONPATH": str(ROOT), "PROOFS": str(clone / "records"), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    lines = run(clone, sys.executable, *command, **settings, **environ).stdout.splitlines()
    return lines[-1].strip("= ").partition(" in ")[0] if lines else ""


def test_what_passed_is_not_run_again_but_when_asked(clone: Path) -> None:
    assert told(clone) == "5 passed, 1 skipped"
    assert told(clone) == "1 skipped, 5 deselected"
    assert told(clone, "-k", "counts") == "6 deselected"
    assert told(clone, "-k", "counts", "--anew") == "3 passed, 3 deselected"


def test_a_run_that_was_cut_off_goes_on_where_it_was(clone: Path) -> None:
    told(clone, CUT="1")
    assert told(clone) == "1 passed, 1 skipped, 4 deselected"


def test_a_failure_is_run_again_even_if_it_passed_in_between(clone: Path) -> None:
    assert told(clone, FAIL="1") == "1 failed, 4 passed, 1 skipped"
    assert told(clone, FAIL="1") == "1 failed, 1 skipped, 4 deselected"
    assert told(clone) == "1 passed, 1 skipped, 4 deselected"
    with next(clone.glob("records/*/*.jsonl")).open("a") as file:
        file.write('{"id": "test_one.py::test_it_may_be_cut_off_or_fail", "outcome": "failed", "seconds": 1}\n')
        file.write('{"id": "test_one.py::test_it_may')  # the machine lost its power
    assert told(clone) == "1 passed, 1 skipped, 4 deselected"


def test_nothing_counts_in_a_clone_with_changes_or_of_another_commit(clone: Path) -> None:
    told(clone)
    before = git(clone, "rev-parse", "HEAD")
    with (clone / "test_one.py").open("a") as file:
        file.write("# changed\n")
    assert told(clone) == told(clone) == "5 passed, 1 skipped"
    commit(clone)
    assert told(clone) == "5 passed, 1 skipped"
    git(clone, "checkout", "--quiet", before)
    assert told(clone) == "1 skipped, 5 deselected"


def test_what_passes_after_a_change_during_the_run_does_not_count(clone: Path) -> None:
    told(clone, EDIT="1")
    (clone / "edited").unlink()
    assert told(clone) == "1 passed, 1 skipped, 4 deselected"


def test_several_processes_keep_one_record(clone: Path) -> None:
    assert told(clone, "-p", "xdist.plugin", "-n", "2") == "5 passed, 1 skipped"
    assert told(clone, "-p", "xdist.plugin", "-n", "2") == "1 skipped"
    (record,) = clone.glob(f"records/*/{OUTER}.jsonl")
    assert len([*cases(record)]) == 6


def test_the_page_says_what_held_how_often_and_what_was_left_out(clone: Path) -> None:
    for name in (OUTER, "two"):
        told(clone, "--record", name)
    (records,) = clone.glob("records/*")
    lines = proofs_page.page(records, clone).splitlines()
    assert [line for line in lines if line.startswith("## ")] == ["## template: test_one.py", "## two: test_one.py"]
    for begins in (
        "| counts are counted | 3 | ",
        "| a cluster trains (skipped: needs a cluster) | 0 | ",
        "| an image is built (built in 40 s) | 1 | ",
    ):
        assert sum(line.startswith(begins) for line in lines) == 2
    assert "All 10 cases together took" in " ".join(lines)
    assert " cores with " in lines[2]


def test_a_record_with_a_failure_makes_no_page(clone: Path) -> None:
    told(clone, FAIL="1")
    (records,) = clone.glob("records/*")
    with pytest.raises(ValueError, match="test_it_may_be_cut_off_or_fail failed"):
        proofs_page.page(records, clone)

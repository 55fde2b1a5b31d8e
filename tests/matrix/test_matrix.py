"""Jobs keep the promise of docs/faults.md: none hangs, the guilty replica is named, the next run resumes."""

import os
from pathlib import Path

import pytest

from tests.conftest import bake, give_environment
from tests.matrix.cells import QUICK, run_all


@pytest.fixture(scope="module")
def projects(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return a baked project of each framework; BAKED keeps their environments from run to run."""
    home = Path(os.environ.get("BAKED", tmp_path_factory.mktemp("baked")))
    found = {}
    for framework in ("pytorch", "tensorflow"):
        found[framework] = bake(tmp_path_factory.mktemp(framework), framework=framework, example="images").project
        give_environment(found[framework], framework, home)
    return found


@pytest.mark.slow
@pytest.mark.proof
def test_a_fifth_of_the_cells_keeps_the_promise(projects: dict[str, Path], tmp_path: Path) -> None:
    verdicts = run_all(projects, QUICK, tmp_path)
    assert {id: one.shortfalls for id, one in verdicts.items() if one.shortfalls} == {}

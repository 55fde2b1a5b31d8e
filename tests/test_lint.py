"""Style, types, dead code and Dockerfiles, as a test, so that both cores have work from the first minute on."""

import sys

import pytest

from tests.conftest import ROOT, run


@pytest.mark.slow
def test_the_template_passes_its_own_lint() -> None:
    done = run(ROOT, sys.executable, "-m", "nox", "--session", "lint")
    assert done.returncode == 0, done.stdout

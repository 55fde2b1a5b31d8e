"""Google's own system tests, unmodified, by the local Vertex."""

from pathlib import Path

import pytest

from tests.fidelity import system_tests

pytestmark = [pytest.mark.slow, pytest.mark.proof]


def test_the_system_tests_have_the_verdicts_of_the_page(tmp_path: Path) -> None:
    assert system_tests.verdicts(tmp_path) == system_tests.recorded()

"""Usages of other projects' clients, by the local Vertex."""

from pathlib import Path

import pytest

from tests.fidelity import projects

pytestmark = [pytest.mark.slow, pytest.mark.proof]


def test_other_projects_clients_have_the_verdicts_of_the_page(tmp_path: Path) -> None:
    assert projects.verdicts(tmp_path) == projects.recorded()

"""What the launcher's tests share."""

from pathlib import Path

import pytest

from tests.conftest import bake


@pytest.fixture(scope="session")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A generated project, for its job files."""
    return bake(tmp_path_factory.mktemp("baked")).project

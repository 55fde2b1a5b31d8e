"""What the launcher's tests share."""

from pathlib import Path

import pytest

from tests.conftest import bake

ANSWERS = {
    "project_name": "Distributed Training",
    "framework": "pytorch",
    "example": "images",
    "gcp_project": "my-project",
    "region": "us-central1",
    "bucket": "my-project-training",
    "worker_machine": "a2-highgpu-8g",
    "machine_count": "3",
}


@pytest.fixture(scope="session")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A generated project, for its job files; its answers are given, whatever the defaults of a fork are."""
    return bake(tmp_path_factory.mktemp("baked"), **ANSWERS).project

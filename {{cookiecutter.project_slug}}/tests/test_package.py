"""Tests that the package from `nox -s package` works with the Python version in Google's image."""

import ast
import re
import subprocess
import sys
import tomllib

import yaml

from tests.training import DEADLINE, PROJECT


def test_its_sources_are_for_the_python_that_it_asks_for_which_is_that_of_googles_images() -> None:
    described = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]
    job = yaml.safe_load((PROJECT / "jobs/prebuilt.yaml").read_text())
    version = re.search(r"\.py(\d)(\d+):", job["workerPoolSpecs"][0]["pythonPackageSpec"]["executorImageUri"])
    assert version
    assert described["requires-python"] == f">={version[1]}.{version[2]}"
    for path in sorted((PROJECT / "trainer").rglob("*.py")):
        tree = ast.parse(path.read_text(), feature_version=(int(version[1]), int(version[2])))
        names = {alias.name for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) for alias in node.names}
        assert not names & {"Self", "UTC", "StrEnum", "LiteralString", "assert_never", "tomllib", "override"}, path


def test_an_image_past_its_end_is_told_with_the_date() -> None:
    command = [sys.executable, "-m", "vertex_launch", "check", "jobs/prebuilt.yaml"]
    said = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, timeout=DEADLINE).stderr
    place, cure = r"workerPoolSpecs\[0\].pythonPackageSpec.executorImageUri", "build your own image"
    assert re.search(rf"warning: {place}: this image reached its end of availability on [-\d]{{10}}; {cure}", said)

"""Tests that the lock files match the requirements. If they don't match, the image build fails after minutes."""

from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

FOLDER = Path(__file__).parents[1] / "requirements"


def asked(name: str) -> dict[str, Requirement]:
    """Map each library in a requirements file to its requirement."""
    lines = (FOLDER / name).read_text(encoding="utf-8").splitlines()
    found = [Requirement(line) for line in lines if line and not line.startswith(("#", "-"))]
    return {canonicalize_name(one.name): one for one in found}


def held(name: str) -> dict[str, str]:
    """Map each library in a lock file to its version."""
    return {library: str(one.specifier).removeprefix("==") for library, one in asked(name).items()}


@pytest.mark.parametrize(("requirements", "lock"), [("cuda.txt", "cuda.lock.txt"), ("trainer.txt", "lock.txt")])
def test_the_lock_has_a_version_of_all_that_the_image_asks_for(requirements: str, lock: str) -> None:
    there = held(lock)
    for name, one in asked(requirements).items():
        # The part after + identifies a build of the version, which a lock file doesn't specify.
        wanted = SpecifierSet(str(one.specifier).partition("+")[0])
        fits = name in there and wanted.contains(there[name], prereleases=True)
        assert fits, f"requirements/{lock} doesn't contain {one}; update the lock files with: nox -s lock"


def test_the_frameworks_lock_is_a_part_of_the_other() -> None:
    assert held("cuda.lock.txt").items() <= held("lock.txt").items(), "update both lock files with: nox -s lock"

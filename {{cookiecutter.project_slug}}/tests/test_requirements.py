"""The locks agree with the requirements; otherwise pip refuses the image, after minutes."""

from pathlib import Path

import pytest
from packaging.requirements import Requirement

FOLDER = Path(__file__).parents[1] / "requirements"


def versions(name: str) -> dict[str, str]:
    """Of each library that a file pins; "" of the others."""
    lines = (FOLDER / name).read_text(encoding="utf-8").splitlines()
    asked = [Requirement(line) for line in lines if line and not line.startswith(("#", "-"))]
    # Behind a + stands which build of a version it is, which a lock leaves open.
    return {one.name.lower(): str(one.specifier).removeprefix("==").partition("+")[0] for one in asked}


@pytest.mark.parametrize(("asked", "lock"), [("cuda.txt", "cuda.lock.txt"), ("trainer.txt", "lock.txt")])
def test_no_lock_has_another_version_than_the_image_asks_for(asked: str, lock: str) -> None:
    held = versions(lock)
    differ = {name for name, version in versions(asked).items() if held.get(name, version) != version}
    assert not differ, f"requirements/{asked} and {lock} differ; bring the locks up to date with: nox -s lock"


def test_the_frameworks_lock_is_a_part_of_the_other() -> None:
    assert versions("cuda.lock.txt").items() <= versions("lock.txt").items(), "write both anew with: nox -s lock"

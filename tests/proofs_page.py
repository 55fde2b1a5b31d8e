"""Write the duration and the figures of each proof to a page: python -m tests.proofs_page RECORDS ENVIRONMENTS."""

import os
import platform
import sys
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from importlib.metadata import distributions
from itertools import groupby
from pathlib import Path

from tests.kept import OUTER, Case, cases, tree

PAGE = """\
# Record of the proofs

`nox -s proofs` generated this page on {day}, on {machine}, with {versions}.
Each row of a table shows one test. *Passed* is the number of the test's cases that passed. All {cases} cases together
took {seconds:,.0f} seconds in two processes. Some of the template's tests run the trainers' tests, so the times of
the template's tests include the times of the trainers' tests.
"""
LIBRARIES = {"torch": "PyTorch", "tensorflow_cpu": "TensorFlow", "google_cloud_aiplatform": "google-cloud-aiplatform"}


def rows(name: str, found: Iterable[Case]) -> Iterator[str]:
    """Yield a table for each test module in a record, with one row per test."""
    parts = sorted(
        ((*case.id.partition("[")[0].rpartition("::")[::2], case) for case in found), key=lambda one: one[:2]
    )
    for module, in_module in groupby(parts, lambda one: one[0]):
        yield f"\n## {name}: {module}\n\n| Test | Passed | Seconds |\n|---|---:|---:|\n"
        for test, of_test in groupby(in_module, lambda one: one[1]):
            yield row(test, [case for *_, case in of_test])


def row(test: str, each: list[Case]) -> str:
    skipped = sorted({case.skipped for case in each if case.skipped})
    told = [f"skipped: {why}" for why in skipped] + [case.figures for case in each if case.figures]
    what = test.removeprefix("test_").replace("_", " ") + "".join(f" ({one})" for one in told)
    held = sum(case.outcome == "passed" for case in each)
    return f"| {what} | {held} | {sum(case.seconds for case in each):.1f} |\n"


def machine() -> str:
    """Return the cores, the memory and the operating system of this machine."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return f"{os.cpu_count()} cores with {memory:.0f} GiB ({platform.system()}, Python {platform.python_version()})"


def versions(environments: Path) -> str:
    """Return the versions of the SDK and of the frameworks in the projects' environments."""
    places = [str(path) for path in environments.glob("*-environment/.venv/lib/python*/site-packages")]
    found = {one.name.replace("-", "_").lower(): one.version for one in distributions(path=[*places, *sys.path])}
    return ", ".join(f"{label} {found[name]}" for name, label in LIBRARIES.items() if name in found)


def page(records: Path, environments: Path) -> str:
    """Return the text of the page.

    Raises:
        ValueError: If a case failed.
    """
    found = {record.stem: [*cases(record)] for record in sorted(records.glob("*.jsonl"))}
    each = [case for of_record in found.values() for case in of_record]
    for case in each:
        if case.outcome == "failed":
            raise ValueError(f"{case.id} failed, so the page can't be written; fix the code and run the proofs again")
    head = PAGE.format(
        day=f"{datetime.now(UTC):%Y-%m-%d}",
        machine=machine(),
        versions=versions(environments),
        cases=sum(case.outcome == "passed" for case in each),
        seconds=sum(case.seconds for case in found[OUTER]),
    )
    return head + "".join(line for name, of_record in found.items() for line in rows(name, of_record))


if __name__ == "__main__":
    kept = Path(sys.argv[1])
    if found := tree(kept):
        written = kept / "proofs.md"
        written.write_text(page(kept / found, Path(sys.argv[2])), encoding="utf-8")
        print(f"The duration of each case is in {written}")

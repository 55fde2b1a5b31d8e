"""Writes docs/proofs.md from what pytest recorded: python -m tests.proofs_page RECORDS ENVIRONMENTS PAGE."""

import os
import platform
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import distributions
from itertools import groupby
from pathlib import Path
from xml.etree import ElementTree

PAGE = """\
# Proofs

`nox -s proofs` wrote this page on {day}, on {machine}, with {versions}.
Every line is a test; *times* counts the cases in which it held. All {cases} cases together took {seconds:,.0f} seconds,
shared by two processes; the template's own lines have those of the trainers in them.
"""
FIGURES = "figures"  # the property of a case that has measured something
OUTER = "template.xml"  # whose cases run all others
LIBRARIES = {"torch": "PyTorch", "tensorflow_cpu": "TensorFlow", "google_cloud_aiplatform": "google-cloud-aiplatform"}


@dataclass(frozen=True, order=True)
class Case:
    """One case of a test: where it stands, its name, how long it took, why it was left out, what it has measured."""

    module: str
    test: str
    seconds: float
    skipped: str = ""
    figures: str = ""


def cases(record: Path) -> Iterator[Case]:
    """The cases of one JUnit file, each named after the file.

    Raises:
        ValueError: a case failed.
    """
    for element in ElementTree.parse(record).iter("testcase"):
        name = element.attrib["name"]
        if element.find("failure") is not None or element.find("error") is not None:
            raise ValueError(f"{record}: {name} failed; only what held goes into the page")
        skipped = element.find("skipped")
        reason = "" if skipped is None else skipped.get("message", "skipped")
        module = f"{record.stem}: {element.attrib['classname']}"
        figures = ", ".join(one.attrib["value"] for one in element.iter("property") if one.get("name") == FIGURES)
        yield Case(module, name.partition("[")[0], float(element.attrib["time"]), reason, figures)


def rows(found: Iterable[Case]) -> Iterator[str]:
    """A table for each module, in which a test is a line."""
    for module, in_module in groupby(
        sorted(found, key=lambda case: (case.module, case.test)), lambda case: case.module
    ):
        yield f"\n## {module}\n\n| What | Times | Seconds |\n|---|---:|---:|\n"
        for test, of_test in groupby(in_module, lambda case: case.test):
            each = list(of_test)
            skipped = sorted({case.skipped for case in each if case.skipped})
            told = [f"skipped: {why}" for why in skipped] + [case.figures for case in each if case.figures]
            what = test.removeprefix("test_").replace("_", " ") + "".join(f" ({one})" for one in told)
            held = sum(not case.skipped for case in each)
            yield f"| {what} | {held} | {sum(case.seconds for case in each):.1f} |\n"


def machine() -> str:
    """The cores, the memory and the system that the proofs ran on."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return f"{os.cpu_count()} cores with {memory:.0f} GiB ({platform.system()}, Python {platform.python_version()})"


def versions(environments: Path) -> str:
    """The frameworks of the projects' environments, and the SDK."""
    places = [str(path) for path in environments.glob("*-environment/.venv/lib/python*/site-packages")]
    found = {one.name.replace("-", "_").lower(): one.version for one in distributions(path=[*places, *sys.path])}
    return ", ".join(f"{label} {found[name]}" for name, label in LIBRARIES.items() if name in found)


def page(records: Path, environments: Path) -> str:
    """The whole page."""
    found = [case for record in sorted(records.glob("*.xml")) for case in cases(record)]
    head = PAGE.format(
        day=f"{datetime.now(UTC):%Y-%m-%d}",
        machine=machine(),
        versions=versions(environments),
        cases=sum(not case.skipped for case in found),
        seconds=sum(case.seconds for case in cases(records / OUTER)),
    )
    return head + "".join(rows(found))


if __name__ == "__main__":
    Path(sys.argv[3]).write_text(page(Path(sys.argv[1]), Path(sys.argv[2])), encoding="utf-8")

"""Write launcher/docs/fidelity.md from a run of all usages and the records of three proofs.

python -m tests.fidelity.page
"""

import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from importlib.metadata import version
from itertools import groupby
from pathlib import Path

from tests.conftest import ROOT
from tests.fidelity import projects, releases, system_tests
from tests.fidelity.themes import THEMES, run, serving, usages
from tests.fidelity.usages import Usage, of_module

PAGE = ROOT / "launcher/docs/fidelity.md"
HEAD = """\
# Fidelity of the local Vertex

`nox -s docs` generates this page from a run of {count} usages with google-cloud-aiplatform {sdk}: {sums}.

A usage is a short script that makes the same calls as a published sample, a notebook, a page of Google's documentation
or a test of Google's client. It uses the unmodified client and verifies the behavior on which its source relies. The
scripts are in `tests/fidelity/`, with one module for each theme. Each change of the launcher must pass them.

- *works*: The local Vertex behaves as the source requires.
- *refused*: The local Vertex doesn't support this usage by design, and rejects it immediately with an error.
- *differs*: The local Vertex behaves in another way, which the verdict describes.
- *not run*: The machine that generated this page lacks a required program.
"""
VERDICTS = ("works", "refused", "differs", "not run", "wrong")
RELEASES = """
## Releases of the SDK

`nox -s proofs` also runs all usages with earlier releases of google-cloud-aiplatform, each in one environment with the
launcher. A script for the Node.js client, @google-cloud/aiplatform {node}, also works as a custom job.

| Release | Works | Refused | Differs | Not run | Wrong |
|---|---:|---:|---:|---:|---:|
"""
PROJECTS = """
## Clients of other projects

`nox -s proofs` runs a script for each of these projects as a custom job, in an environment with the project's packages.
The script uses the project's own code to make the project's usual calls, and needs no special settings.

| Usage | Source | Verdict |
|---|---|---|
"""
SYSTEM_TESTS = """
## Google's own system tests

The source distribution of google-cloud-aiplatform {release} contains tests in tests/system/aiplatform. `nox -s proofs`
runs these tests unmodified as a custom job of the local Vertex, with their default transport: {sums}.
A local bucket contains the public objects that the tests read. *refused* means that the local Vertex rejects one of the
test's calls, because it doesn't support this call by design.

| Module | Passed | Refused | Fails | Not run |
|---|---:|---:|---:|---:|
"""
NOT_PASSED = "\n| Test | Verdict |\n|---|---|\n"


def row(usage: Usage, verdict: str) -> str:
    """Return a usage as a line of the page."""
    return f"| {usage.name} | {usage.source} | {verdict} |"


def verdicts() -> list[str]:
    """Return the verdicts on the page, in the order of the usages."""
    themes = PAGE.read_text(encoding="utf-8").partition(RELEASES.splitlines()[1])[0]
    lines = [line for line in themes.splitlines() if line.startswith("| ") and not line.startswith("| Usage")]
    return [line.split(" | ")[-1].removesuffix(" |") for line in lines]


def page(verdicts: Iterable[str]) -> str:
    """Return the whole page from the verdicts on all usages, in their order."""
    verdicts = [*verdicts]
    count = _count(verdicts)
    sums = ", ".join(f"{kind} {count[kind]}" for kind in VERDICTS if count[kind])
    head = HEAD.format(count=len(verdicts), sdk=version(releases.SDK), sums=sums)
    themes, earlier = _tables(iter(verdicts)), _of_releases(verdicts)
    return head + "".join((*themes, *earlier, *_of_projects(), *_of_system_tests(system_tests.recorded())))


def _tables(verdicts: Iterator[str]) -> Iterator[str]:
    for theme in THEMES:
        yield f"\n## {str(theme.__doc__).rstrip('.')}\n\n| Usage | Source | Verdict |\n|---|---|---|\n"
        yield from (f"{row(usage, next(verdicts))}\n" for usage in of_module(theme))


def _of_releases(verdicts: Iterable[str]) -> Iterator[str]:
    yield RELEASES.format(node=releases.NODE)
    known = dict(zip((usage.id for usage in usages()), verdicts, strict=True))
    for release, changed in {version(releases.SDK): {}, **releases.recorded()}.items():
        count = _count({**known, **changed}.values())
        yield _line(release, *(count[kind] for kind in VERDICTS))


def _of_projects() -> Iterator[str]:
    yield PROJECTS
    verdicts = projects.recorded()
    yield from (_line(project.name, project.source, verdicts[project.script]) for project in projects.PROJECTS)


def _of_system_tests(verdicts: Mapping[str, str]) -> Iterator[str]:
    kinds, count = ("passed", "refused", "fails", "not run"), _count(verdicts.values())
    sums = ", ".join(f"{kind} {count[kind]}" for kind in kinds)
    yield SYSTEM_TESTS.format(release=system_tests.RELEASE, sums=sums)
    for module, tests in groupby(verdicts, lambda test: test.partition(":")[0]):
        count = _count(verdicts[test] for test in tests)
        yield _line(module, *(count[kind] for kind in kinds))
    yield NOT_PASSED
    yield from (_line(test, verdict) for test, verdict in verdicts.items() if verdict != "passed")


def _count(verdicts: Iterable[str]) -> Counter[str]:
    return Counter(verdict.partition(":")[0] for verdict in verdicts)


def _line(*cells: object) -> str:
    return f"| {' | '.join(map(str, cells))} |\n"


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder, serving(Path(folder)) as vertex:
        PAGE.write_text(page(run(vertex)), encoding="utf-8")

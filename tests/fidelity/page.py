"""Writes docs/launcher/fidelity.md from a run of all usages: python -m tests.fidelity.page."""

import sys
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from importlib.metadata import version
from pathlib import Path

from tests.conftest import ROOT
from tests.fidelity import (
    datasets,
    experiments,
    gcloud,
    jobs,
    logging,
    models,
    outside,
    pipelines,
    replicas,
    rest,
    storage,
    tensorboards,
    tuning,
)
from tests.fidelity.usages import Usage, of_module
from tests.launch.vertex import Service, service

PAGE = ROOT / "docs/launcher/fidelity.md"
THEMES = (
    *(jobs, replicas, tuning, pipelines, models, datasets, experiments, tensorboards),
    *(storage, logging, gcloud, rest, outside),
)
HEAD = """\
# Fidelity of the local Vertex

`nox -s docs` wrote this page from a run of {count} usages with google-cloud-aiplatform {sdk}: {sums}.

A usage is a short script of ours: it makes the calls of a sample, a notebook, a page of Google's documentation or a
test of Google's client, with the client as it is, and asserts what its source relies on. *works*: it does. *refused*:
it is outside by decision, and refused at once, in a sentence. *differs*: the local Vertex does it in another way, and
the sentence says how. *not run*: the machine that wrote this page lacks a program. The scripts are the modules of
`tests/fidelity/`, one for each theme; each change must pass them.
"""
VERDICTS = {
    "works": "work",
    "refused": "are refused",
    "differs": "differ",
    "not run": "did not run",
    "wrong": "are wrong",
}


def serving(folder: Path) -> AbstractContextManager[Service]:
    """Start the service for all usages, one after the other."""
    return service(folder, "--grace-seconds", "0.5", "--capacity", "64")


def usages() -> list[Usage]:
    return [usage for theme in THEMES for usage in of_module(theme)]


def row(usage: Usage, verdict: str) -> str:
    """Return a usage as a line of the page."""
    return f"| {usage.name} | {usage.source} | {verdict} |"


def page(verdicts: Iterable[str]) -> str:
    """Return the whole page from the verdicts on all usages, in their order."""
    verdicts = [*verdicts]
    kinds = [verdict.partition(":")[0] for verdict in verdicts]
    sums = ", ".join(f"{kinds.count(kind)} {verb}" for kind, verb in VERDICTS.items() if kind in kinds)
    head = HEAD.format(count=len(verdicts), sdk=version("google-cloud-aiplatform"), sums=sums)
    return head + "".join(_tables(iter(verdicts)))


def _tables(verdicts: Iterator[str]) -> Iterator[str]:
    for theme in THEMES:
        yield f"\n## {str(theme.__doc__).rstrip('.')}\n\n| Usage | Source | Verdict |\n|---|---|---|\n"
        yield from (f"{row(usage, next(verdicts))}\n" for usage in of_module(theme))


def run(vertex: Service) -> Iterator[str]:
    """Yield the verdict on each usage; what the script raises makes it wrong."""
    for usage in usages():
        try:
            yield f"not run: {usage.skipped}" if usage.skipped else usage.verdict(vertex)
        except Exception as error:
            print(f"{usage.id}: {error}", file=sys.stderr)
            yield "wrong: its script fails"


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder, serving(Path(folder)) as vertex:
        PAGE.write_text(page(run(vertex)), encoding="utf-8")

"""Reads job files and holds them against the rules, for `vertex-launch check`, and says which of these are old."""

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path

from vertex_launch import __version__, rules
from vertex_launch.errors import FaultError, Finding
from vertex_launch.facts.catalog import FACTS, OWN, Catalog
from vertex_launch.job import spec
from vertex_launch.job.spec import Job, TuningJob
from vertex_launch.rules import Project, region_and_output
from vertex_launch.settings import Settings

FRESH_DAYS = 180  # facts that are older deserve a look at their sources
# Release of the launcher -> what it no longer has, and what to use in its place.
DROPPED = {
    "0.2.0": "the module vertex_launch.replicas; a test calls the function of that name, vertex_launch.replicas(JOB)",
}


@dataclass(frozen=True)
class Examined:
    """A job file and what was found in it; `job` is None if the file holds none."""

    path: Path
    job: Job | TuningJob | None
    findings: tuple[Finding, ...]

    def passes(self, strict: bool) -> bool:
        """Whether it has no errors and, if strict, no warnings."""
        return not any(strict or finding.severity == "error" for finding in self.findings)


def examine(path: Path, settings: Settings, project: Project) -> Examined:
    """Read a job file and hold it against the rules."""
    try:
        job = spec.load(path)
    except FaultError as error:
        return Examined(path, None, tuple(replace(finding, code=rules.form.code) for finding in error.findings))
    return Examined(path, job, tuple(rules.findings(job, settings, project)))


def examine_all(paths: Iterable[Path], settings: Settings, project: Project) -> list[Examined]:
    """Examine several job files, each also against those before it."""
    examined: list[Examined] = []
    outputs: dict[str, str] = {}
    for path in dict.fromkeys(paths):
        file = examine(path, settings, replace(project, outputs=dict(outputs)))
        examined.append(file)
        if file.job and (folder := region_and_output.output(spec.trial(file.job))):
            outputs.setdefault(folder, str(path))
    return examined


def facts_notice(catalog: Catalog, today: date) -> str:
    """Return a warning if the facts behind the rules are old, else ""."""
    if (today - catalog.compiled).days <= FRESH_DAYS:
        return ""
    return f"{FACTS}: the facts are of {catalog.compiled}; look at their sources, or update vertex_launch"


def release_notice(made_with: str, installed: str = __version__) -> str:
    """Return a sentence if the installed launcher is older than the project's or lacks what that had, else ""."""
    made, here = _numbers(made_with), _numbers(installed)
    project = f"{OWN}: this project was made with vertex-launch {made_with}, and {installed}"
    if made_with and here < made:
        return f"{project} is older; install the newer one"
    gone = [text for release, text in DROPPED.items() if made_with and made < _numbers(release) <= here]
    return f'{project} has dropped {"; ".join(gone)}; then write launcher = "{installed}" there' if gone else ""


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall("[0-9]+", version)))

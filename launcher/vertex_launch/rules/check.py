"""Checks job files against the rules, and warns about outdated facts and releases."""

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

FRESH_DAYS = 180  # older facts should be compared with their sources
# Launcher release -> what the release removed, and the replacement.
DROPPED = {
    "0.2.0": "the vertex_launch.replicas module. In tests, call vertex_launch.replicas(JOB) instead",
}


@dataclass(frozen=True)
class Examined:
    """A job file and its findings. `job` is None if the file can't be parsed as a job."""

    path: Path
    job: Job | TuningJob | None
    findings: tuple[Finding, ...]

    def passes(self, strict: bool) -> bool:
        """Return whether the file passes the check. A warning fails the check only if `strict` is true."""
        return not any(strict or finding.severity == "error" for finding in self.findings)


def examine(path: Path, settings: Settings, project: Project) -> Examined:
    """Read a job file, and check it against the rules."""
    try:
        job = spec.load(path)
    except FaultError as error:
        return Examined(path, None, tuple(replace(finding, code=rules.form.code) for finding in error.findings))
    return Examined(path, job, tuple(rules.findings(job, settings, project)))


def examine_all(paths: Iterable[Path], settings: Settings, project: Project) -> list[Examined]:
    """Check several job files, and warn if two jobs have the same output folder."""
    examined: list[Examined] = []
    outputs: dict[str, str] = {}
    for path in dict.fromkeys(paths):
        file = examine(path, settings, replace(project, outputs=dict(outputs)))
        examined.append(file)
        if file.job and (folder := region_and_output.output(spec.trial(file.job))):
            outputs.setdefault(folder, str(path))
    return examined


def facts_notice(catalog: Catalog, today: date) -> str:
    """Return a warning if the facts that the rules use are outdated. Otherwise, return ""."""
    if (today - catalog.compiled).days <= FRESH_DAYS:
        return ""
    return f"{FACTS}: the facts date from {catalog.compiled}; compare them with their sources, or update vertex-launch"


def release_notice(made_with: str, installed: str = __version__) -> str:
    """Return a warning if the launcher is too old or too new for the project. Otherwise, return ""."""
    made, here = _numbers(made_with), _numbers(installed)
    project = f"{OWN}: this project was generated with vertex-launch {made_with}, but {installed} is installed"
    if made_with and here < made:
        return f"{project}; install {made_with} or newer"
    gone = [text for release, text in DROPPED.items() if made_with and made < _numbers(release) <= here]
    return (
        f'{project}, which removed {"; ".join(gone)}. After this change, set launcher = "{installed}" in {OWN}'
        if gone
        else ""
    )


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall("[0-9]+", version)))

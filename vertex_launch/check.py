"""Reads job files and holds them against the rules, for `vertex-launch check`."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path

from vertex_launch import rules, spec
from vertex_launch.catalog import FACTS, Catalog
from vertex_launch.errors import FaultError, Finding
from vertex_launch.rules import Project, region_and_output
from vertex_launch.settings import Settings
from vertex_launch.spec import Job, TuningJob


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


def notice(catalog: Catalog, today: date) -> str:
    """Return a warning if the facts behind the rules are old, else ""."""
    if not catalog.is_old(today):
        return ""
    cure = "look at their sources, or update vertex_launch"
    return f"{FACTS}: the facts are of {catalog.compiled}; {cure}"

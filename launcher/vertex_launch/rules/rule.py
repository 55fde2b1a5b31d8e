"""A rule, its findings, and what it is given to look at."""

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar

from vertex_launch.errors import Finding, Findings, Severity
from vertex_launch.facts.catalog import Catalog, Certainty
from vertex_launch.job.spec import Job, Pool, TuningJob
from vertex_launch.settings import Settings

__all__ = ["Finding", "Findings", "Job", "Pool", "TuningJob"]  # for the modules of rules
__all__ += ["Declare", "Project", "Rule", "RuleContext", "more", "rule", "rule_of_pool", "rule_of_search"]

Subject = TypeVar("Subject", Job, Pool, TuningJob)


def text(path: Path) -> str:
    """Return the text of a file, "" where it cannot be read or has a name that no file can have."""
    with contextlib.suppress(OSError, ValueError):
        return path.read_text(encoding="utf-8")
    return ""


@dataclass(frozen=True)
class Project:
    """Surroundings of a job file; they decide warnings only, so the local Vertex does without them."""

    today: date | None = None
    flags: Mapping[str, object] = field(default_factory=dict)  # of `python -m trainer.task`, with plain defaults
    values: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # what those flags take: int, float, or choices
    dockerfile: str = ""  # of our image
    # flag -> strategies that have it, if not all do
    takers: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    trains: bool = False  # whether it has a trainer
    metrics: tuple[str, ...] = ()  # all that the trainer reports of held-out samples; none if they aren't known
    outputs: Mapping[str, str] = field(default_factory=dict)  # output folder -> the file of another job that has it
    versions: Mapping[str, str] = field(default_factory=dict)  # of the frameworks here: torch -> 2.13.0
    folder: Path | None = None  # in which its files lie
    buckets: Path | None = None  # in which the local Vertex has one folder a bucket

    def text(self, name: str) -> str:
        """Return the text of one of its files, "" where it cannot be read."""
        return text(self.folder / name) if self.folder else ""


@dataclass(frozen=True)
class RuleContext:
    """Everything that a job is held against."""

    settings: Settings
    catalog: Catalog
    project: Project


@dataclass(frozen=True)
class Rule:
    """One way in which a job can be wrong. An error stands on a documented fact; everything else is a warning."""

    code: str
    severity: Severity | Literal["off"]
    certainty: Certainty
    sources: tuple[str, ...]  # keys of the catalog's sources, or files of this project
    consequence: str  # without the rule: what Vertex AI would do
    text: str  # the rule in one sentence
    subject: type[Job] | type[Pool] | type[TuningJob]
    check: Callable[[Any, RuleContext], Findings]  # of one subject

    def findings(self, job: Job | TuningJob, context: RuleContext) -> Findings:
        """Findings in a job of the kind; a rule of pools looks at each, and names places in it."""
        if self.subject is not Pool:
            return self.check(job, context)
        pools = job.pools if isinstance(job, Job) else ()
        return (finding.below(pool.at()) for pool in pools for finding in self.check(pool, context))


REFUSED = "Vertex AI refuses the job."


@dataclass(frozen=True)
class Declare(Generic[Subject]):
    """Makes a rule of a function that yields findings; its docstring is the rule and, behind `Otherwise:`, why."""

    subject: type[Subject]
    consequence: str = REFUSED  # of a rule that does not say

    def __call__(
        self, code: str, severity: Severity, certainty: Certainty, *sources: str
    ) -> Callable[[Callable[[Subject, RuleContext], Findings]], Rule]:
        def declare(check: Callable[[Subject, RuleContext], Findings]) -> Rule:
            text, _, consequence = (" ".join(part.split()) for part in (check.__doc__ or "").partition("Otherwise:"))
            return Rule(code, severity, certainty, sources, consequence or self.consequence, text, self.subject, check)

        return declare


rule, rule_of_pool, rule_of_search = Declare(Job), Declare(Pool), Declare(TuningJob)


def more(place: str, count: int, limit: int, things: str, cure: str) -> Findings:
    """A finding if there is more of something than Vertex AI takes."""
    if count > limit:
        yield Finding(place, f"has {count} {things}, and Vertex AI takes {limit}", cure)

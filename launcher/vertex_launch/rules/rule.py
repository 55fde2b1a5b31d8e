"""Types that describe a rule, and decorators that declare a rule."""

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

__all__ = ["Finding", "Findings", "Job", "Pool", "TuningJob"]  # for the modules that declare rules
__all__ += ["Declare", "Project", "Rule", "RuleContext", "more", "rule", "rule_of_pool", "rule_of_search"]

Subject = TypeVar("Subject", Job, Pool, TuningJob)


def text(path: Path) -> str:
    """Return the text of a file. Return "" if the file can't be read or if its name isn't valid."""
    with contextlib.suppress(OSError, ValueError):
        return path.read_text(encoding="utf-8")
    return ""


@dataclass(frozen=True)
class Project:
    """The project that contains a job file. The local Vertex doesn't read projects, because only warnings use them."""

    today: date | None = None
    flags: Mapping[str, object] = field(default_factory=dict)  # flag of `python -m trainer.task` -> its literal default
    values: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # flag -> int, float, bool, or its choices
    dockerfile: str = ""  # the text of the project's Dockerfile
    # flag -> the strategies that accept the flag, unless all strategies do
    takers: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    trains: bool = False  # whether the project has a trainer
    metrics: tuple[str, ...] = ()  # the metrics that the trainer reports for held-out samples; empty if unknown
    outputs: Mapping[str, str] = field(default_factory=dict)  # output folder -> the file of another job that uses it
    versions: Mapping[str, str] = field(default_factory=dict)  # installed framework -> version, such as torch -> 2.13.0
    folder: Path | None = None  # the project's folder
    buckets: Path | None = None  # the folder in which the local Vertex keeps one folder per bucket

    def text(self, name: str) -> str:
        """Return the text of a file in the project. Return "" if the file can't be read."""
        return text(self.folder / name) if self.folder else ""


@dataclass(frozen=True)
class RuleContext:
    """The settings, facts, and project that rules use to check a job."""

    settings: Settings
    catalog: Catalog
    project: Project


@dataclass(frozen=True)
class Rule:
    """A check for one problem in a job. Errors are based on documented facts. All other problems are warnings."""

    code: str
    severity: Severity | Literal["off"]
    certainty: Certainty
    sources: tuple[str, ...]  # keys of the catalog's sources, or files of this project
    consequence: str  # what happens on Vertex AI to a job that breaks the rule
    text: str  # the rule in one sentence
    subject: type[Job] | type[Pool] | type[TuningJob]
    check: Callable[[Any, RuleContext], Findings]  # checks one subject

    def findings(self, job: Job | TuningJob, context: RuleContext) -> Findings:
        """Return the rule's findings for a job. A rule for pools checks each worker pool of the job."""
        if self.subject is not Pool:
            return self.check(job, context)
        pools = job.pools if isinstance(job, Job) else ()
        return (finding.below(pool.at()) for pool in pools for finding in self.check(pool, context))


REFUSED = "Vertex AI rejects the job."


@dataclass(frozen=True)
class Declare(Generic[Subject]):
    """A decorator that turns a function into a rule. The function must yield findings.

    The function's docstring states the rule. The text after `Otherwise:` states what happens to a job that breaks the
    rule.
    """

    subject: type[Subject]
    consequence: str = REFUSED  # if the docstring doesn't state one

    def __call__(
        self, code: str, severity: Severity, certainty: Certainty, *sources: str
    ) -> Callable[[Callable[[Subject, RuleContext], Findings]], Rule]:
        def declare(check: Callable[[Subject, RuleContext], Findings]) -> Rule:
            text, _, consequence = (" ".join(part.split()) for part in (check.__doc__ or "").partition("Otherwise:"))
            return Rule(code, severity, certainty, sources, consequence or self.consequence, text, self.subject, check)

        return declare


rule, rule_of_pool, rule_of_search = Declare(Job), Declare(Pool), Declare(TuningJob)


def more(place: str, count: int, limit: int, things: str, cure: str) -> Findings:
    """Yield a finding if the number of items exceeds Vertex AI's limit."""
    if count > limit:
        yield Finding(place, f"Vertex AI accepts at most {limit} {things}, not {count}", cure)

"""A rule, its findings, and what it is given to look at."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import date
from functools import partial, wraps
from typing import Any, Literal, TypeVar

from vertex_launch.catalog import Catalog, Certainty
from vertex_launch.errors import Findings, Severity
from vertex_launch.settings import Settings
from vertex_launch.spec import Job, Pool, TuningJob

Subject = TypeVar("Subject", Job, Pool, TuningJob)


@dataclass(frozen=True)
class Project:
    """Surroundings of a job file; they decide warnings only, so the local Vertex does without them."""

    today: date | None = None
    flags: Mapping[str, object] = field(default_factory=dict)  # of `python -m trainer.task`, with plain defaults
    values: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # what those flags take: int, float, or choices
    dockerfile: str = ""  # of our image
    metrics: tuple[str, ...] = ()  # that the trainer is seen to report of held-out samples
    names: frozenset[str] = frozenset()  # that stand in the trainer's files, in quotes or as keywords
    outputs: Mapping[str, str] = field(default_factory=dict)  # output folder -> the file of another job that has it


@dataclass(frozen=True)
class RuleContext:
    """Everything that a job is held against."""

    settings: Settings
    catalog: Catalog
    project: Project


Check = Callable[[Subject, RuleContext], Findings]


@dataclass(frozen=True)
class Rule:
    """One way in which a job can be wrong. An error stands on a documented fact; everything else is a warning."""

    code: str
    severity: Severity | Literal["off"]
    certainty: Certainty
    sources: tuple[str, ...]  # keys of the catalog's sources, or files of this project
    consequence: str  # without the rule: what Vertex AI would do
    text: str  # the rule in one sentence
    check: Callable[[Any, RuleContext], Findings]
    subject: type[Job] | type[TuningJob]  # of the check


REFUSED = "Vertex AI refuses the job."


def rule(code: str, severity: Severity, certainty: Certainty, *sources: str) -> Callable[[Check[Job]], Rule]:
    """Make a rule of a function that looks at a job; its docstring is the rule and, behind `Otherwise:`, why."""
    return partial(_rule, Job, code, severity, certainty, sources)


def rule_of_pool(code: str, severity: Severity, certainty: Certainty, *sources: str) -> Callable[[Check[Pool]], Rule]:
    """Make a rule of a function that looks at one pool, and names places in it."""

    def declare(check: Check[Pool]) -> Rule:
        @wraps(check)
        def check_all(job: Job, context: RuleContext) -> Findings:
            return (finding.below(pool.at()) for pool in job.pools for finding in check(pool, context))

        return rule(code, severity, certainty, *sources)(check_all)

    return declare


def rule_of_search(
    code: str, severity: Severity, certainty: Certainty, *sources: str
) -> Callable[[Check[TuningJob]], Rule]:
    """Make a rule of a function that looks at a hyperparameter tuning job; those of jobs look at its trials' job."""
    return partial(_rule, TuningJob, code, severity, certainty, sources)


def _rule(
    subject: type[Job] | type[TuningJob],
    code: str,
    severity: Severity,
    certainty: Certainty,
    sources: tuple[str, ...],
    check: Callable[[Any, RuleContext], Findings],
) -> Rule:
    text, _, consequence = (" ".join(part.split()) for part in (check.__doc__ or "").partition("Otherwise:"))
    return Rule(code, severity, certainty, sources, consequence or REFUSED, text, check, subject)

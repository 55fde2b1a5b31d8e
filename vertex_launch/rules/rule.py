"""What a rule is, what it finds, and what it is given to look at."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import date
from functools import wraps
from typing import Generic, TypeVar

from vertex_launch.catalog import Catalog, Certainty
from vertex_launch.errors import Findings, Severity
from vertex_launch.settings import Settings
from vertex_launch.spec import Job, Pool, TuningJob

Subject = TypeVar("Subject", Job, TuningJob)


@dataclass(frozen=True)
class Project:
    """What stands around a job file; it decides warnings only, so the local Vertex does without it."""

    today: date | None = None
    flags: Mapping[str, object] = field(default_factory=dict)  # of `python -m trainer.task`, with plain defaults
    values: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # what those flags take: int, float, or choices
    dockerfile: str = ""  # of our image
    metrics: tuple[str, ...] = ()  # that the trainer is seen to report of held-out samples
    names: frozenset[str] = frozenset()  # that stand in the trainer's files, in quotes or as keywords
    outputs: Mapping[str, str] = field(default_factory=dict)  # output folder -> the file of another job that has it


@dataclass(frozen=True)
class RuleContext:
    """What a job is held against."""

    settings: Settings
    catalog: Catalog
    project: Project


Check = Callable[[Subject, RuleContext], Findings]
PoolCheck = Callable[[Pool, RuleContext], Findings]


@dataclass(frozen=True)
class Rule(Generic[Subject]):
    """One way in which a job can be wrong. An error stands on a documented fact; everything else is a warning."""

    code: str
    severity: Severity
    certainty: Certainty
    sources: tuple[str, ...]  # keys of the catalog's sources, or files of this project
    consequence: str  # without the rule: what Vertex AI would do
    text: str  # the rule in one sentence
    check: Check[Subject]


REFUSED = "Vertex AI refuses the job."


def rule(
    code: str, severity: Severity, certainty: Certainty, *sources: str
) -> Callable[[Check[Subject]], Rule[Subject]]:
    """Make a rule of a function that yields findings; its docstring is the rule and, behind `Otherwise:`, why."""

    def declare(check: Check[Subject]) -> Rule[Subject]:
        text, _, consequence = (" ".join(part.split()) for part in (check.__doc__ or "").partition("Otherwise:"))
        return Rule(code, severity, certainty, sources, consequence or REFUSED, text, check)

    return declare


def rule_of_pool(
    code: str, severity: Severity, certainty: Certainty, *sources: str
) -> Callable[[PoolCheck], Rule[Job]]:
    """The same of a function that looks at one pool, and names places in it."""

    def declare(check: PoolCheck) -> Rule[Job]:
        @wraps(check)
        def check_all(job: Job, context: RuleContext) -> Findings:
            return (finding.below(pool.at()) for pool in job.pools for finding in check(pool, context))

        return rule(code, severity, certainty, *sources)(check_all)

    return declare

"""What Vertex AI would refuse, or spoil, only after the job was sent: where, what, the cure, and why.

One module for each subject, one function for each code: what the rule rests on is declared above its function, the
facts are in vertex_launch/machines.yaml. `python -m vertex_launch.rules` prints the page of all rules. The names of
`__all__` are also for the rules of a project: docs/house-rules.md.
"""

import re
from collections.abc import Collection, Iterator
from dataclasses import replace
from types import ModuleType

from google.cloud.aiplatform_v1.types.custom_job import CustomJobSpec

from vertex_launch.errors import FaultError, Finding, Findings, first
from vertex_launch.rules import (
    containers,
    house,
    machines,
    pools,
    reducers,
    region_and_output,
    scheduling,
    training,
    tuning,
)
from vertex_launch.rules.rule import Project, Rule, RuleContext, rule, rule_of_pool, rule_of_search
from vertex_launch.settings import Settings
from vertex_launch.spec import Job, Pool, TuningJob, located

__all__ = [
    "RULES",
    "Finding",
    "Findings",
    "Job",
    "Pool",
    "Project",
    "Rule",
    "RuleContext",
    "TuningJob",
    "applied",
    "findings",
    "form_findings",
    "rule",
    "rule_of_pool",
    "rule_of_search",
]


@rule("form", "error", "documented", "api-types")
def form(job: Job, context: RuleContext) -> Findings:
    """A job file is what the API takes, to the letter: its keys, its values, and text where it wants text."""
    yield from ()  # of a job that could be read, nothing: `form_findings` has the others


def _declared(*modules: ModuleType) -> Iterator[Rule]:
    return (one for module in modules for one in vars(module).values() if isinstance(one, Rule))


OURS = (
    form,
    *_declared(pools, machines, region_and_output, reducers, scheduling, containers, training),
    *tuning.STUDY_RULES,
    *_declared(tuning),
)
RULES = {one.code: one for one in OURS}
NOWHERE = Project()


def applied(settings: Settings) -> dict[str, Rule]:
    """The rules that hold where these settings do, by code; raises FaultError for a table [rules] that is wrong."""
    return house.applied(RULES, settings)


def in_local_vertex(settings: Settings) -> Settings:
    """The settings for a job that runs here, where no severity makes less of what Vertex AI refuses."""
    return house.raised_only(RULES, settings)


def findings(job: Job | TuningJob, settings: Settings, project: Project = NOWHERE) -> list[Finding]:
    """What the rules find, the first 50 of each, in the order of the file; of a job without a file, by place."""
    context = RuleContext(settings, settings.catalog, project)
    rules = applied(settings).values()
    found = _of_tuning(rules, job, context) if isinstance(job, TuningJob) else _found(rules, job, context)
    lined = [located(one, job.document) for one in found]
    return sorted(lined, key=lambda one: (one.line, "" if one.line else _numbered(one.place), one.code))


def form_findings(error: FaultError) -> list[Finding]:
    """Findings of a file that is no job."""
    return [replace(finding, code=form.code) for finding in error.findings]


def _of_tuning(rules: Collection[Rule], job: TuningJob, context: RuleContext) -> Findings:
    yield from _found(rules, job, context)
    for finding in _found(rules, job.trial_job, context):
        in_file = finding.place != region_and_output.REGION
        yield finding.below("trialJobSpec") if in_file else finding


def _found(rules: Collection[Rule], job: Job | TuningJob, context: RuleContext) -> Findings:
    """Findings of the rules for this kind of job; of too many pools, only `at_most_four` sees all."""
    few = _first_pools(job, context.catalog.limits.pools) if isinstance(job, Job) else job
    for one in rules:
        if one.subject is type(job) and one.severity != "off":
            seen = job if one.code == pools.at_most_four.code else few
            for finding in first(one.check(seen, context)):
                yield replace(finding, code=one.code, severity=one.severity)


def _first_pools(job: Job, count: int) -> Job:
    if len(job.spec.worker_pool_specs) <= count:
        return job
    job = replace(job, spec=CustomJobSpec(job.spec))
    del job.spec.worker_pool_specs[count:]
    return job


def _numbered(place: str) -> str:
    """A place such that env[9] comes before env[10]."""
    return re.sub("[0-9]+", lambda digits: digits[0].zfill(9), place)

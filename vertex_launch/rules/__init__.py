"""What Vertex AI would refuse, or spoil, only after the job was sent: where, what, the cure, and why.

One module for each subject, one function for each code: what the rule rests on is declared above its function, the
facts are in vertex_launch/machines.yaml. `python -m vertex_launch.rules` prints the page of all rules.
"""

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from google.cloud.aiplatform_v1.types.custom_job import CustomJobSpec

from vertex_launch.errors import FaultError, Finding, Findings, first
from vertex_launch.rules import containers, machines, pools, reducers, region_and_output, scheduling, training, tuning
from vertex_launch.rules.rule import Project, Rule, RuleContext, rule
from vertex_launch.settings import Settings
from vertex_launch.spec import Job, TuningJob, located

__all__ = ["JOB_RULES", "RULES", "TUNING_RULES", "Project", "Rule", "findings", "form_findings"]


@rule("form", "error", "documented", "api-types")
def form(job: Job, context: RuleContext) -> Findings:
    """A job file is what the API takes, to the letter: its keys, its values, and text where it wants text."""
    yield from ()  # of a job that could be read, nothing: `form_findings` has the others


MODULES = (pools, machines, region_and_output, reducers, scheduling, containers, training)
JOB_RULES = tuple(one for module in MODULES for one in vars(module).values() if isinstance(one, Rule))
TUNING_RULES = (*tuning.STUDY_RULES, *(one for one in vars(tuning).values() if isinstance(one, Rule)))
RULES: dict[str, Rule[Any]] = {one.code: one for one in (form, *JOB_RULES, *TUNING_RULES)}
NOWHERE = Project()


def findings(job: Job | TuningJob, settings: Settings, project: Project = NOWHERE) -> list[Finding]:
    """What the rules find, the first 50 of each, in the order of the file; of a job without a file, by place."""
    context = RuleContext(settings, settings.catalog, project)
    found = _of_tuning(job, context) if isinstance(job, TuningJob) else _of_job(job, context)
    lined = [located(one, job.document) for one in found]
    return sorted(lined, key=lambda one: (one.line, "" if one.line else _numbered(one.place), one.code))


def form_findings(error: FaultError) -> list[Finding]:
    """The same for a file that is no job."""
    return [replace(finding, code=form.code) for finding in error.findings]


def _of_tuning(job: TuningJob, context: RuleContext) -> Findings:
    yield from _found(TUNING_RULES, job, context)
    for finding in _of_job(job.trial_job, context):
        in_file = finding.place != region_and_output.REGION
        yield finding.below("trialJobSpec") if in_file else finding


def _of_job(job: Job, context: RuleContext) -> Findings:
    """Where pools are too many, `at_most_four` counts all; the other rules look only at the first ones."""
    yield from _found([pools.at_most_four], job, context)
    if len(job.spec.worker_pool_specs) > context.catalog.limits.pools:
        job = replace(job, spec=CustomJobSpec(job.spec))
        del job.spec.worker_pool_specs[context.catalog.limits.pools :]
    yield from _found([one for one in JOB_RULES if one is not pools.at_most_four], job, context)


def _found(rules: Sequence[Rule[Any]], job: Job | TuningJob, context: RuleContext) -> Findings:
    for one in rules:
        for finding in first(one.check(job, context)):
            yield replace(finding, code=one.code, severity=one.severity)


def _numbered(place: str) -> str:
    """A place such that env[9] comes before env[10]."""
    return re.sub("[0-9]+", lambda digits: digits[0].zfill(9), place)

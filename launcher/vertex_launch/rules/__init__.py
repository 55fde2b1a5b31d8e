"""Rules that find problems in a job before you submit it to Vertex AI.

Each module contains the rules for one topic. Each function with the @rule decorator checks one rule. The decorator
specifies the rule's code, severity, and sources. The facts that rules use are in vertex_launch/facts/. The command
`python -m vertex_launch.rules` prints a page that lists all rules. A module with a project's own rules can import the
names in `__all__`. launcher/docs/house-rules.md describes how to write these rules.
"""

import re
from collections.abc import Collection, Iterator
from dataclasses import replace
from types import ModuleType

from google.cloud.aiplatform_v1.types.custom_job import CustomJobSpec

from vertex_launch.errors import Finding, Findings, first
from vertex_launch.job.spec import Job, Pool, TuningJob, located
from vertex_launch.rules import (
    containers,
    exit_codes,
    image_contents,
    launchers,
    machines,
    network,
    placeholders,
    pools,
    reducers,
    region_and_output,
    scheduling,
    training,
    tuning,
)
from vertex_launch.rules.house import merged
from vertex_launch.rules.rule import Project, Rule, RuleContext, rule, rule_of_pool, rule_of_search
from vertex_launch.settings import Settings

__all__ = ["RULES", "Project", "applied", "findings", "form", "in_local_vertex"]
__all__ += ["Finding", "Findings", "Job", "Pool", "Rule", "RuleContext", "TuningJob"]  # for a project's own rules
__all__ += ["rule", "rule_of_pool", "rule_of_search"]


@rule("form", "error", "documented", "api-types")
def form(job: Job, context: RuleContext) -> Findings:
    """The keys and values of a job file must match the API exactly. A string field must contain a string."""
    yield from ()  # A parsed job matches the API. `check.examine` reports all other files.


def _declared(*modules: ModuleType) -> Iterator[Rule]:
    return (one for module in modules for one in vars(module).values() if isinstance(one, Rule))


OURS = (
    form,
    *_declared(pools, machines, region_and_output, network, reducers, scheduling, containers),
    *_declared(placeholders, image_contents, training, launchers, exit_codes),
    *tuning.STUDY_RULES,
    *_declared(tuning),
)
RULES = {one.code: one for one in OURS}
NOWHERE = Project()


def applied(settings: Settings) -> dict[str, Rule]:
    """Return the rules for these settings, keyed by code. Raises FaultError if the [rules] table isn't valid."""
    return merged(RULES, settings)


def in_local_vertex(settings: Settings) -> Settings:
    """Return the settings for a local job, without custom severities for error rules."""
    errors = {code for code, one in RULES.items() if one.severity == "error"}
    return replace(settings, rules={key: value for key, value in settings.rules.items() if key not in errors})


def findings(job: Job | TuningJob, settings: Settings, project: Project = NOWHERE) -> list[Finding]:
    """Return the first 50 findings of each rule, in the order of the job file.

    If the job wasn't read from a file, the findings are sorted by location.
    """
    context = RuleContext(settings, settings.catalog, project)
    rules = applied(settings).values()
    found = _of_tuning(rules, job, context) if isinstance(job, TuningJob) else _of_job(rules, job, context)
    lined = [located(one, job.document) for one in found]
    return sorted(lined, key=lambda one: (one.line, "" if one.line else _numbered(one.place), one.code))


def _of_tuning(rules: Collection[Rule], job: TuningJob, context: RuleContext) -> Findings:
    yield from _found([one for one in rules if one.subject is TuningJob], job, context)
    for finding in _of_job(rules, job.trial_job, context):
        in_file = finding.place != region_and_output.REGION
        yield finding.below("trialJobSpec") if in_file else finding


def _of_job(rules: Collection[Rule], job: Job, context: RuleContext) -> Findings:
    """Yield the findings for a job. If a job has too many pools, most rules check only the first ones."""
    counts = pools.at_most_four.code
    yield from _found([one for one in rules if one.code == counts], job, context)
    few = replace(job, spec=CustomJobSpec(job.spec))
    del few.spec.worker_pool_specs[context.catalog.limits.pools :]
    yield from _found([one for one in rules if one.subject is not TuningJob and one.code != counts], few, context)


def _found(rules: Collection[Rule], job: Job | TuningJob, context: RuleContext) -> Findings:
    for one in rules:
        if one.severity != "off":
            for finding in first(one.findings(job, context)):
                yield replace(finding, code=one.code, severity=one.severity)


def _numbered(place: str) -> str:
    """Return the location with zero-padded numbers, so that env[9] sorts before env[10]."""
    return re.sub("[0-9]+", lambda digits: digits[0].zfill(9), place)

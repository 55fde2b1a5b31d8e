"""Rules for hyperparameter tuning jobs and for the jobs of their trials."""

from collections.abc import Callable
from functools import wraps

from google.cloud.aiplatform_v1.types.hyperparameter_tuning_job import HyperparameterTuningJob
from google.cloud.aiplatform_v1.types.study import StudySpec

from vertex_launch.errors import Finding, Findings, Severity, did_you_mean
from vertex_launch.facts import labels
from vertex_launch.job import study_validation
from vertex_launch.job.contract import argument_pools
from vertex_launch.rules import shells
from vertex_launch.rules.containers import words
from vertex_launch.rules.rule import Rule, RuleContext, TuningJob, rule_of_search
from vertex_launch.rules.training import FLAGS, MODEL, runs_trainer, why_refused


def _of_study(code: str, severity: Severity, source: str, check: Callable[[HyperparameterTuningJob], Findings]) -> Rule:
    return rule_of_search(code, severity, "documented", source)(wraps(check)(lambda job, context: check(job.spec)))


STUDY_RULES = (
    _of_study("study-counts", "error", "api-types", study_validation.count_findings),
    _of_study("study-metrics", "error", "api-types", study_validation.metric_findings),
    _of_study("study-parameters", "error", "api-types", study_validation.parameter_findings),
    _of_study("study-local", "warning", "vertex_launch/job/study_validation.py", study_validation.local_findings),
)


@rule_of_search("search-name", "error", "documented", "api-types")
def search_named(job: TuningJob, context: RuleContext) -> Findings:
    """A tuning job's displayName can have at most 128 characters. The default displayName is the job file's name."""
    if job.spec.display_name:
        yield from labels.name_findings(job.spec.display_name)


@rule_of_search("label", "error", "documented", "labels")
def labels_right(job: TuningJob, context: RuleContext) -> Findings:
    """A tuning job can have at most 64 labels. Labels consist of lowercase letters, digits, hyphens, and underscores. A
    label's key must begin with a letter or a digit."""
    yield from labels.of_all(job.spec.labels)


@rule_of_search("metric-unknown", "warning", "inferred", "trainer")
def metrics_reported(job: TuningJob, context: RuleContext) -> Findings:
    """A tuning job's metric should be the loss or a metric that metrics() in the project's model.py returns.
    Otherwise: Every trial becomes infeasible because it has no measurement, unless other trainer code reports the
    metric."""
    names = context.project.metrics if runs_trainer(job.trial_job.chief, context) else ()
    for index, metric in enumerate(job.spec.study_spec.metrics if names else ()):
        if metric.metric_id and metric.metric_id not in names:
            cure = f"use {' or '.join(names)}, or return the metric from metrics() in {MODEL}"
            fault = f'the trainer doesn\'t report the metric "{metric.metric_id}"'
            yield Finding(f"studySpec.metrics[{index}].metricId", fault, cure)


@rule_of_search("parameter-unknown", "warning", "documented", "trainer")
def parameters_are_flags(job: TuningJob, context: RuleContext) -> Findings:
    """A tuning job's parameter should be a flag of the project's trainer. The trainer's flags are the fields of the
    Config class.
    Otherwise: Every trial fails immediately with a usage message."""
    fields = context.project.flags if runs_trainer(job.trial_job.chief, context) else {}
    for place, name in study_validation.parameter_ids(job.spec.study_spec) if fields else ():
        if name and name.replace("-", "_").partition(".")[0] not in fields:
            yield Finding(
                f"{place}.parameterId", f"{FLAGS} doesn't define the flag --{name}", did_you_mean(name, fields)
            )


@rule_of_search("parameter-value", "warning", "documented", "trainer")
def values_fit(job: TuningJob, context: RuleContext) -> Findings:
    """The trainer's flag should accept all values of the tuning job's parameter.
    Otherwise: Trials with values that the flag doesn't accept fail immediately with a usage message."""
    taken = context.project.values if runs_trainer(job.trial_job.chief, context) else {}
    for place, name, values in study_validation.tried(job.spec.study_spec) if taken else ():
        if wrong := next(filter(None, (why_refused(name, value, context.project) for value in values)), None):
            yield Finding(place, *wrong)


@rule_of_search("trial-flags", "warning", "documented", "hyperparameter-tuning", "shell")
def flags_arrive(job: TuningJob, context: RuleContext) -> Findings:
    """A script that a shell runs with -c should pass the trial's flags to the trainer as "$@". After the script, the
    command should contain a placeholder argument, which becomes $0.
    Otherwise: Every trial trains with the default flags and succeeds."""
    programs = [words(pool, context) for pool in reversed(argument_pools(job.trial_job))]
    first = {
        tuple(word for _, word in program): program for program in programs
    }  # one finding for pools with the same program
    for text in filter(None, map(shells.inline, reversed(first.values()))):
        if found := shells.lost(text):
            yield Finding(f"trialJobSpec.{text.place}", *found)


@rule_of_search("trial-parallel", "warning", "documented", "hyperparameter-tuning")
def trials_learn(job: TuningJob, context: RuleContext) -> Findings:
    """The number of parallel trials should be lower than the total number of trials, so that later trials can learn
    from earlier ones.
    Otherwise: The tuning job is effectively a random search, because all trials start before the first one ends."""
    most, parallel = job.spec.max_trial_count, job.spec.parallel_trial_count
    learns = job.spec.study_spec.algorithm == StudySpec.Algorithm.ALGORITHM_UNSPECIFIED
    if learns and 1 < most <= parallel:
        fault = f"{parallel} of {most} trials run in parallel, so they can't learn from each other"
        yield Finding("parallelTrialCount", fault, f"set it to {max(most // 3, 1)}, or use RANDOM_SEARCH")


@rule_of_search("trial-replicas", "warning", "inferred", "hyperparameter-tuning")
def chief_reports(job: TuningJob, context: RuleContext) -> Findings:
    """If a trial has several replicas, only the chief should report metrics, as the project's trainer does.
    Otherwise: Vertex AI ignores the other replicas' metrics or treats them as the chief's."""
    count = sum(pool.replica_count for pool in job.trial_job.training_pools)
    if count > 1 and not runs_trainer(job.trial_job.chief, context):
        fault = f"this trial has {count} replicas, but Vertex AI uses only the chief's metrics"
        yield Finding("trialJobSpec.workerPoolSpecs", fault, "report metrics only from the chief, or use one replica")


@rule_of_search("trial-reducers", "warning", "uncertain", "hyperparameter-tuning")
def no_reducers(job: TuningJob, context: RuleContext) -> Findings:
    """Trials should not have reducers. Every pool receives the trial's parameters as args, but reducers don't accept
    args.
    Otherwise: The reducers of every trial might fail, because they don't accept the trial's flags."""
    for pool in job.trial_job.reducers:
        fault = "the reducers might receive the trial's flags, but they don't accept flags"
        yield Finding(f"trialJobSpec.{pool.at()}", fault, "remove pool 2 from the trials")

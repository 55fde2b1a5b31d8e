"""The rules of our organization, in addition to the rules of vertex_launch."""

from vertex_launch.rules import Finding, Findings, Job, Pool, RuleContext, TuningJob, rule, rule_of_pool, rule_of_search

HANDBOOK = "handbook.example.com/training"
DAY, TRIALS = 86400, 50


@rule("house-timeout", "error", "documented", HANDBOOK)
def ends_within_a_day(job: Job, context: RuleContext) -> Findings:
    """A job ends within a day.

    Otherwise: The job occupies machines that other teams need.
    """
    if job.spec.scheduling.timeout.total_seconds() > DAY:
        yield Finding("scheduling.timeout", "is longer than a day", f"write {DAY}s or less")


@rule_of_pool("house-machine", "warning", "inferred", HANDBOOK)
def has_discount(pool: Pool, context: RuleContext) -> Findings:
    """A machine without GPUs is an E2 machine, because our organization has a discount for E2."""
    if not (pool.accelerator or pool.reduces or pool.machine_type.startswith("e2-")):
        yield Finding("machineSpec.machineType", f"{pool.machine_type} has no discount", "write e2-standard-8")


@rule_of_search("house-trials", "error", "documented", HANDBOOK)
def tries_little(job: TuningJob, context: RuleContext) -> Findings:
    """A tuning job has at most 50 trials."""
    if job.spec.max_trial_count > TRIALS:
        yield Finding("maxTrialCount", f"is {job.spec.max_trial_count}", f"set it to {TRIALS} or less")

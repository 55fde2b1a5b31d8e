"""When a job gets its machines, how long it keeps them, and what happens when it loses one."""

import math
import re
from collections.abc import Iterator
from datetime import timedelta

from google.cloud.aiplatform_v1.types.reservation_affinity import ReservationAffinity

from vertex_launch.job.spec import OUTPUT, Job, Pool
from vertex_launch.rules.region_and_output import folder
from vertex_launch.rules.rule import Finding, Findings, RuleContext, rule, rule_of_pool
from vertex_launch.rules.training import flag_of, runs_trainer

Reservation = ReservationAffinity.Type
LONGEST = "write the longest run you would pay for, such as 3600s"
ROLLCALL = "rollcall_timeout"  # the flag of the template's trainer
RESERVATION_KEY = "compute.googleapis.com/reservation-name"
CLOUD_ROLLCALL = "600"  # seconds in the cloud, where the flag is None


@rule("timeout-missing", "warning", "documented", "api-types")
def timeout_set(job: Job, context: RuleContext) -> Findings:
    """A job says how long it may run.
    Otherwise: A job that hangs is stopped, and no longer billed, after seven days."""
    if "timeout" not in job.spec.scheduling:
        yield Finding("scheduling.timeout", "is missing, so a job that hangs costs seven days of its machines", LONGEST)


@rule("timeout-zero", "warning", "inferred", "api-types")
def timeout_above_zero(job: Job, context: RuleContext) -> Findings:
    """A timeout leaves the job some time.
    Otherwise: Vertex AI stops the job at once, or takes the zero for its default of seven days."""
    if "timeout" in job.spec.scheduling and not job.spec.scheduling.timeout:
        yield Finding("scheduling.timeout", "leaves the job no time", LONGEST)


@rule("timeout-short", "warning", "inferred", "api-types", "trainer")
def timeout_long_enough(job: Job, context: RuleContext) -> Findings:
    """A timeout is no shorter than --rollcall-timeout, for which replicas of the project's trainer wait for each other.
    Otherwise: Vertex AI stops the job while its replicas still fetch their image, or wait for each other."""
    timeout = job.spec.scheduling.timeout if "timeout" in job.spec.scheduling else None
    if not (timeout and job.chief and ROLLCALL in context.project.flags and runs_trainer(job.chief, context)):
        return  # `timeout_above_zero` reports a timeout of zero
    _, value = flag_of(job.chief, ROLLCALL, context)
    seconds = CLOUD_ROLLCALL if value == "None" else value
    if re.fullmatch(r"[0-9]{1,9}(\.[0-9]*)?", seconds) and timeout.total_seconds() < float(seconds):
        fault = f"{timeout.total_seconds():g} s may be over before all replicas are there"
        yield Finding("scheduling.timeout", fault, f"write {math.ceil(float(seconds))}s or more")


@rule("flex-start-timeout", "error", "documented", "flex-start")
def flex_start_timeout(job: Job, context: RuleContext) -> Findings:
    """A FLEX_START job runs at most seven days."""
    longest = timedelta(seconds=context.catalog.limits.flex_start_seconds)
    if job.strategy == "FLEX_START" and job.spec.scheduling.timeout > longest:
        fault = f"FLEX_START allows {longest.days} days"
        yield Finding("scheduling.timeout", fault, f"write at most {longest.total_seconds():.0f}s")


@rule("flex-start-machines", "error", "documented", "flex-start")
def flex_start_machines(job: Job, context: RuleContext) -> Findings:
    """A FLEX_START job has the same machines in every pool, and therefore no reducers."""
    machines = [pool.spec.machine_spec for pool in job.pools]
    if job.strategy == "FLEX_START" and any(machine != machines[0] for machine in machines):
        cure = "remove the reducers" if job.reducers else "make every machineSpec the same"
        yield Finding("scheduling.strategy", "FLEX_START wants the same machines in every pool", f"{cure}, or use SPOT")


@rule("flex-start-accelerator", "warning", "inferred", "flex-start")
def flex_start_accelerators(job: Job, context: RuleContext) -> Findings:
    """A FLEX_START job trains on GPUs that the documentation lists for it, in any of their variants.
    Otherwise: Vertex AI refuses the job, or never finds a machine for it."""
    offered = context.catalog.limits.flex_start_accelerators
    for pool in job.training_pools if job.strategy == "FLEX_START" else ():
        if pool.accelerator not in offered:
            fault = f"FLEX_START is offered for {', '.join(offered)}"
            yield Finding(pool.at("machineSpec.acceleratorType"), fault, "choose one, or use SPOT")


@rule("flex-start-reservation", "error", "documented", "flex-start")
def flex_start_reservation(job: Job, context: RuleContext) -> Findings:
    """A FLEX_START job takes no machines from a reservation."""
    for place in _reservations(job) if job.strategy == "FLEX_START" else ():
        yield Finding(place, "FLEX_START takes no machines from a reservation", "remove it, or use STANDARD")


@rule("persistent-reservation", "error", "documented", "reservations")
def persistent_without_reservation(job: Job, context: RuleContext) -> Findings:
    """A persistent resource, and a job on one, takes no machines from a reservation."""
    for place in _reservations(job) if job.spec.persistent_resource_id else ():
        fault = "a persistent resource takes no machines from a reservation"
        yield Finding(place, fault, "remove it, or use machines of the job's own")


def _reservations(job: Job) -> Iterator[str]:
    """The places of reservations from which pools take their machines."""
    for pool in job.pools:
        if pool.spec.machine_spec.reservation_affinity.reservation_affinity_type == Reservation.SPECIFIC_RESERVATION:
            yield pool.at("machineSpec.reservationAffinity")


@rule("persistent-strategy", "warning", "inferred", "persistent-resources")
def persistent_machines_there(job: Job, context: RuleContext) -> Findings:
    """A job on a persistent resource has no strategy for getting machines, because they are there.
    Otherwise: Vertex AI may refuse the job; it saves nothing, as the machines of the resource are billed all the time.
    """
    if job.spec.persistent_resource_id and job.strategy in ("SPOT", "FLEX_START"):
        fault = f"{job.strategy} is a way to get machines, and those of a persistent resource are there"
        yield Finding("scheduling.strategy", fault, "remove it, or persistentResourceId")


@rule("wait-unread", "warning", "documented", "api-types")
def wait_of_flex_start(job: Job, context: RuleContext) -> Findings:
    """Only a FLEX_START job says how long it waits for its machines.
    Otherwise: Vertex AI does not look at maxWaitDuration."""
    if "max_wait_duration" in job.spec.scheduling and job.strategy != "FLEX_START":
        strategy = job.strategy.replace("STRATEGY_UNSPECIFIED", "STANDARD")
        fault = f"is for FLEX_START jobs alone, and this one is {strategy}"
        yield Finding("scheduling.maxWaitDuration", fault, "remove it, or use FLEX_START")


@rule_of_pool("reservation-field", "error", "documented", "api-types")
def reservation_named(pool: Pool, context: RuleContext) -> Findings:
    """A reservation affinity has a type, and one for a specific reservation names that by key and values."""
    machine, affinity = pool.spec.machine_spec, pool.spec.machine_spec.reservation_affinity
    kind = affinity.reservation_affinity_type
    if "reservation_affinity" in machine and kind == Reservation.TYPE_UNSPECIFIED:
        cure = "write NO_RESERVATION, ANY_RESERVATION or SPECIFIC_RESERVATION"
        yield Finding("machineSpec.reservationAffinity.reservationAffinityType", "is missing", cure)
    if kind == Reservation.SPECIFIC_RESERVATION and not (affinity.key and affinity.values):
        cure = f"write key: {RESERVATION_KEY} and its name below values"
        yield Finding("machineSpec.reservationAffinity", "names no reservation", cure)


@rule("strategy-deprecated", "warning", "documented", "api-types")
def strategy_current(job: Job, context: RuleContext) -> Findings:
    """The strategy is not deprecated.
    Otherwise: Vertex AI takes it as its new name, until it no longer does."""
    if instead := context.catalog.limits.deprecated_strategies.get(job.strategy):
        yield Finding("scheduling.strategy", f"{job.strategy} is deprecated", f"write {instead}")


@rule("spot-output", "warning", "inferred", "spot", "api-types")
def spot_resumes(job: Job, context: RuleContext) -> Findings:
    """A SPOT job has an output folder, where the checkpoints lie from which it resumes.
    Otherwise: Every preempted machine sends the job back to its first step, up to six times."""
    if job.strategy == "SPOT" and not job.spec.base_output_directory.output_uri_prefix:
        fault = "is missing, so a preempted job starts again from its first step"
        yield Finding(OUTPUT, fault, f"set it to {folder(job, context)}, or use STANDARD")


@rule("restart-alone", "warning", "documented", "training-service", "api-types")
def restarts_together(job: Job, context: RuleContext) -> Findings:
    """Replicas that all-reduce gradients restart together; only parameter servers survive the loss of one.
    Otherwise: Vertex AI restarts one replica in place; the others wait for an answer that never comes, then fail."""
    scheduling, servers = job.spec.scheduling, any(pool.serves for pool in job.pools)
    several = sum(pool.replica_count for pool in job.training_pools) > 1
    if several and not (servers or scheduling.restart_job_on_worker_restart or scheduling.disable_retries):
        fault = "is not true, so a replica that restarts comes back alone, and the others fail"
        yield Finding("scheduling.restartJobOnWorkerRestart", fault, "set it to true")


@rule("restart-overridden", "warning", "documented", "api-types")
def restart_holds(job: Job, context: RuleContext) -> Findings:
    """disableRetries switches restartJobOnWorkerRestart off; a job says one of them.
    Otherwise: Vertex AI ignores restartJobOnWorkerRestart: the job ends with the first replica that fails."""
    scheduling = job.spec.scheduling
    if scheduling.disable_retries and scheduling.restart_job_on_worker_restart:
        yield Finding("scheduling.disableRetries", "switches restartJobOnWorkerRestart off", "keep one of them")

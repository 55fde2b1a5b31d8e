"""Rules for job scheduling: strategies, timeouts, reservations, and restarts."""

import math
import re
from collections.abc import Iterator
from datetime import timedelta

from google.cloud.aiplatform_v1.types.reservation_affinity import ReservationAffinity

from vertex_launch.job.spec import OUTPUT, Job, Pool
from vertex_launch.rules.region_and_output import folder
from vertex_launch.rules.rule import Finding, Findings, RuleContext, rule, rule_of_pool
from vertex_launch.rules.training import flag_of, is_elastic, runs_trainer

Reservation = ReservationAffinity.Type
LONGEST = "set it to the longest time that you would pay for, such as 3600s"
ROLLCALL = "rollcall_timeout"  # a flag of the template's trainer
RESERVATION_KEY = "compute.googleapis.com/reservation-name"
CLOUD_ROLLCALL = "600"  # seconds in the cloud, if the flag is None


@rule("timeout-missing", "warning", "documented", "api-types")
def timeout_set(job: Job, context: RuleContext) -> Findings:
    """A job should set a timeout.
    Otherwise: If the job hangs, Vertex AI stops it only after seven days and bills you for the entire time."""
    if "timeout" not in job.spec.scheduling:
        yield Finding(
            "scheduling.timeout", "the job doesn't set a timeout. A job that hangs is billed for seven days", LONGEST
        )


@rule("timeout-zero", "warning", "inferred", "api-types")
def timeout_above_zero(job: Job, context: RuleContext) -> Findings:
    """A job's timeout should be greater than zero.
    Otherwise: Vertex AI stops the job immediately or uses its default timeout of seven days."""
    if "timeout" in job.spec.scheduling and not job.spec.scheduling.timeout:
        yield Finding("scheduling.timeout", "with a timeout of zero, the job can't run", LONGEST)


@rule("timeout-short", "warning", "inferred", "api-types", "trainer")
def timeout_long_enough(job: Job, context: RuleContext) -> Findings:
    """A job's timeout should be at least as long as --rollcall-timeout, which limits how long replicas wait for each
    other to start.
    Otherwise: Vertex AI stops the job while its replicas are still pulling their image or waiting for each other."""
    timeout = job.spec.scheduling.timeout if "timeout" in job.spec.scheduling else None
    if not (timeout and job.chief and ROLLCALL in context.project.flags and runs_trainer(job.chief, context)):
        return  # `timeout_above_zero` reports a timeout of zero
    _, value = flag_of(job.chief, ROLLCALL, context)
    seconds = CLOUD_ROLLCALL if value == "None" else value
    if re.fullmatch(r"[0-9]{1,9}(\.[0-9]*)?", seconds) and timeout.total_seconds() < float(seconds):
        fault = f"the timeout of {timeout.total_seconds():g} s might expire before all replicas have started"
        yield Finding("scheduling.timeout", fault, f"set it to {math.ceil(float(seconds))}s or more")


@rule("flex-start-timeout", "error", "documented", "flex-start")
def flex_start_timeout(job: Job, context: RuleContext) -> Findings:
    """A FLEX_START job can run for at most seven days."""
    longest = timedelta(seconds=context.catalog.limits.flex_start_seconds)
    if job.strategy == "FLEX_START" and job.spec.scheduling.timeout > longest:
        fault = f"a FLEX_START job can run for at most {longest.days} days"
        yield Finding("scheduling.timeout", fault, f"set it to at most {longest.total_seconds():.0f}s")


@rule("flex-start-machines", "error", "documented", "flex-start")
def flex_start_machines(job: Job, context: RuleContext) -> Findings:
    """A FLEX_START job must use the same machines in every pool. Therefore, it can't have reducers."""
    machines = [pool.spec.machine_spec for pool in job.pools]
    if job.strategy == "FLEX_START" and any(machine != machines[0] for machine in machines):
        cure = "remove the reducers" if job.reducers else "write the same machineSpec in every pool"
        yield Finding(
            "scheduling.strategy", "FLEX_START requires the same machines in every pool", f"{cure}, or use SPOT"
        )


@rule("flex-start-accelerator", "warning", "inferred", "flex-start")
def flex_start_accelerators(job: Job, context: RuleContext) -> Findings:
    """A FLEX_START job should train on a GPU or GPU variant that the documentation lists for FLEX_START.
    Otherwise: Vertex AI rejects the job or never provides machines for it."""
    offered = context.catalog.limits.flex_start_accelerators
    for pool in job.training_pools if job.strategy == "FLEX_START" else ():
        if pool.accelerator not in offered:
            fault = f"FLEX_START supports only {', '.join(offered)}"
            yield Finding(pool.at("machineSpec.acceleratorType"), fault, "choose one of these GPUs, or use SPOT")


@rule("flex-start-reservation", "error", "documented", "flex-start")
def flex_start_reservation(job: Job, context: RuleContext) -> Findings:
    """A FLEX_START job can't use a reservation."""
    for place in _reservations(job) if job.strategy == "FLEX_START" else ():
        yield Finding(place, "FLEX_START jobs can't use a reservation", "remove the reservation, or use STANDARD")


@rule("persistent-reservation", "error", "documented", "reservations")
def persistent_without_reservation(job: Job, context: RuleContext) -> Findings:
    """A job that runs on a persistent resource can't use a reservation."""
    for place in _reservations(job) if job.spec.persistent_resource_id else ():
        fault = "a job on a persistent resource can't use a reservation"
        yield Finding(place, fault, "remove the reservation, or remove persistentResourceId")


def _reservations(job: Job) -> Iterator[str]:
    """Yield the location of each specific reservation in the pools."""
    for pool in job.pools:
        if pool.spec.machine_spec.reservation_affinity.reservation_affinity_type == Reservation.SPECIFIC_RESERVATION:
            yield pool.at("machineSpec.reservationAffinity")


@rule("persistent-strategy", "warning", "inferred", "persistent-resources")
def persistent_machines_there(job: Job, context: RuleContext) -> Findings:
    """A job on a persistent resource should not use SPOT or FLEX_START, because the resource's machines already exist.
    Otherwise: Vertex AI might reject the job. The strategy doesn't reduce the cost, because Vertex AI always bills for
    these machines."""
    if job.spec.persistent_resource_id and job.strategy in ("SPOT", "FLEX_START"):
        fault = f"{job.strategy} requests machines, but the machines of a persistent resource already exist"
        yield Finding("scheduling.strategy", fault, "remove the strategy, or remove persistentResourceId")


@rule("wait-unread", "warning", "documented", "api-types")
def wait_of_flex_start(job: Job, context: RuleContext) -> Findings:
    """Only FLEX_START jobs should set maxWaitDuration, which limits how long a job waits for machines.
    Otherwise: Vertex AI ignores maxWaitDuration."""
    if "max_wait_duration" in job.spec.scheduling and job.strategy != "FLEX_START":
        strategy = job.strategy.replace("STRATEGY_UNSPECIFIED", "STANDARD")
        fault = f"maxWaitDuration applies only to FLEX_START jobs, but this job uses {strategy}"
        yield Finding("scheduling.maxWaitDuration", fault, "remove the field, or use FLEX_START")


@rule_of_pool("reservation-field", "error", "documented", "api-types")
def reservation_named(pool: Pool, context: RuleContext) -> Findings:
    """A reservation affinity must have a type. A specific reservation must also have a key and values."""
    machine, affinity = pool.spec.machine_spec, pool.spec.machine_spec.reservation_affinity
    kind = affinity.reservation_affinity_type
    if "reservation_affinity" in machine and kind == Reservation.TYPE_UNSPECIFIED:
        cure = "write NO_RESERVATION, ANY_RESERVATION, or SPECIFIC_RESERVATION"
        yield Finding("machineSpec.reservationAffinity.reservationAffinityType", "is missing", cure)
    if kind == Reservation.SPECIFIC_RESERVATION and not (affinity.key and affinity.values):
        cure = f"write key: {RESERVATION_KEY}, and the reservation's name under values"
        yield Finding("machineSpec.reservationAffinity", "doesn't specify a reservation", cure)


@rule("strategy-deprecated", "warning", "documented", "api-types")
def strategy_current(job: Job, context: RuleContext) -> Findings:
    """A job should not use a deprecated strategy.
    Otherwise: Vertex AI uses the strategy's new name. In the future, Vertex AI might reject the deprecated name."""
    if instead := context.catalog.limits.deprecated_strategies.get(job.strategy):
        yield Finding("scheduling.strategy", f"{job.strategy} is deprecated", f"write {instead}")


@rule("spot-output", "warning", "inferred", "spot", "api-types")
def spot_resumes(job: Job, context: RuleContext) -> Findings:
    """A SPOT job should have an output folder, so that it can resume from its checkpoints.
    Otherwise: After every preemption, the job restarts from its first step, up to six times."""
    if job.strategy == "SPOT" and not job.spec.base_output_directory.output_uri_prefix:
        fault = "the job doesn't set an output folder, so a preempted job restarts from its first step"
        yield Finding(OUTPUT, fault, f"set it to {folder(job, context)}, or use STANDARD")


@rule("spot-elastic", "warning", "documented", "spot")
def spot_restarts_all(job: Job, context: RuleContext) -> Findings:
    """A job with --strategy elastic should not use SPOT, because Vertex AI restarts the whole job after a preemption.
    Otherwise: After every preemption, all replicas restart from the latest checkpoint, as with --strategy ddp."""
    if job.strategy == "SPOT" and is_elastic(job, context):
        fault = "after a preemption, the service restarts all replicas, so --strategy elastic doesn't help"
        yield Finding("scheduling.strategy", fault, "use STANDARD, or use --strategy ddp")


@rule("restart-alone", "warning", "documented", "training-service", "api-types")
def restarts_together(job: Job, context: RuleContext) -> Findings:
    """Replicas that all-reduce gradients should restart together. Only a job with parameter servers or with --strategy
    elastic can continue without a failed replica.
    Otherwise: Vertex AI restarts only the failed replica. The other replicas wait for it and then fail."""
    scheduling = job.spec.scheduling
    goes_on = any(pool.serves for pool in job.pools) or is_elastic(job, context)
    several = sum(pool.replica_count for pool in job.training_pools) > 1
    if several and not (goes_on or scheduling.restart_job_on_worker_restart or scheduling.disable_retries):
        fault = "this field isn't true, so if one replica fails and restarts, the other replicas fail"
        yield Finding("scheduling.restartJobOnWorkerRestart", fault, "set it to true")


@rule("restart-elastic", "warning", "documented", "training-service", "api-types")
def lost_replica_returns(job: Job, context: RuleContext) -> Findings:
    """A job with --strategy elastic should set neither restartJobOnWorkerRestart nor disableRetries.
    Otherwise: If one replica fails, either all replicas restart, or the failed replica never returns."""
    if not is_elastic(job, context):
        return
    if job.spec.scheduling.disable_retries:
        yield Finding("scheduling.disableRetries", "this field is true, so a lost replica never returns", "remove it")
    elif job.spec.scheduling.restart_job_on_worker_restart:
        fault = "this field is true, so if one replica is lost, all replicas restart, as with --strategy ddp"
        yield Finding("scheduling.restartJobOnWorkerRestart", fault, "set it to false")


@rule("restart-overridden", "warning", "documented", "api-types")
def restart_holds(job: Job, context: RuleContext) -> Findings:
    """A job should not set both disableRetries and restartJobOnWorkerRestart, because disableRetries disables
    restartJobOnWorkerRestart.
    Otherwise: Vertex AI ignores restartJobOnWorkerRestart, so the job fails when one replica fails."""
    scheduling = job.spec.scheduling
    if scheduling.disable_retries and scheduling.restart_job_on_worker_restart:
        yield Finding(
            "scheduling.disableRetries",
            "disableRetries disables restartJobOnWorkerRestart",
            "keep only one of the fields",
        )

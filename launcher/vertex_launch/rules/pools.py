"""Rules for a job's worker pools and their required fields."""

from vertex_launch import program
from vertex_launch.job.spec import CHIEF, WORKERS, Job, Pool, as_json
from vertex_launch.rules.rule import Finding, Findings, RuleContext, more, rule, rule_of_pool

# Source: google-cloud-aiplatform 2.7.0, the fields marked as required.
REQUIRED = {"containerSpec": ["imageUri"], "pythonPackageSpec": ["executorImageUri", "packageUris", "pythonModule"]}


@rule("chief-count", "error", "documented", "distributed-training")
def one_chief(job: Job, context: RuleContext) -> Findings:
    """Pool 0 must be the chief, with exactly one replica."""
    if job.chief is None:
        yield Finding("workerPoolSpecs[0]", "is missing or empty", "define the chief in pool 0, with replicaCount: 1")
    elif job.chief.replica_count != 1:
        fault = f"the value must be 1 for the chief, not {job.chief.replica_count}"
        yield Finding(job.chief.at("replicaCount"), fault, "set it to 1 and put all other replicas in pool 1")


@rule("pool-count", "error", "documented", "distributed-training")
def at_most_four(job: Job, context: RuleContext) -> Findings:
    """A job can have at most four pools: chief, workers, reducers or parameter servers, and evaluators."""
    count, cure = len(job.spec.worker_pool_specs), "keep the chief, workers, reducers, and evaluators, in this order"
    yield from more("workerPoolSpecs", count, context.catalog.limits.pools, "pools", cure)


@rule("pool-gap", "warning", "documented", "gcloud")
def no_gap(job: Job, context: RuleContext) -> Findings:
    """A job with an empty pool, {}, should not be submitted with gcloud.
    Otherwise: gcloud rejects the job without sending a request, although the API would accept it."""
    filled = {pool.index for pool in job.pools}
    for index in range(WORKERS, max(filled, default=CHIEF)):
        if index not in filled and not job.reducers:  # reducers without workers: `workers_are_several` reports them
            fault = "the API accepts an empty pool, but gcloud doesn't"
            yield Finding(f"workerPoolSpecs[{index}]", fault, f"submit the job with {program.NAME} submit")


@rule("pool-trailing", "warning", "inferred", "api-types", "gcloud")
def no_empty_end(job: Job, context: RuleContext) -> Findings:
    """The last pool should not be empty. An empty pool is useful only if another pool follows it.
    Otherwise: gcloud rejects the job."""
    filled = {pool.index for pool in job.pools}
    for index in range(max(filled, default=CHIEF) + 1, len(job.spec.worker_pool_specs)):
        yield Finding(f"workerPoolSpecs[{index}]", "this empty pool isn't followed by another pool", "remove the pool")


@rule_of_pool("pool-replicas", "error", "documented", "api-types")
def has_replicas(pool: Pool, context: RuleContext) -> Findings:
    """A pool must have at least one replica. To skip a pool, write an empty mapping, {}, instead of the pool."""
    if pool.replica_count < 1 and pool.index != CHIEF:
        fault = f"the value is {pool.replica_count}, but a pool must have at least one replica"
        yield Finding("replicaCount", fault, "set the value to 1 or more, or write {} instead of the pool")


@rule_of_pool("pool-machine", "error", "documented", "configure-compute")
def has_machine(pool: Pool, context: RuleContext) -> Findings:
    """A pool must specify its machine type."""
    if not pool.machine_type:
        yield Finding("machineSpec.machineType", "is missing", "choose a machine type such as n1-standard-8")


@rule_of_pool("pool-task", "error", "documented", "api-types")
def has_task(pool: Pool, context: RuleContext) -> Findings:
    """A pool must specify its program, in a containerSpec or a pythonPackageSpec."""
    if not pool.task:
        yield Finding("", "the pool doesn't specify a program", "add a containerSpec with the image to run")


@rule_of_pool("task-field", "error", "documented", "api-types")
def has_fields(pool: Pool, context: RuleContext) -> Findings:
    """A containerSpec must specify its image. A pythonPackageSpec must specify its executor image, packages, and Python
    module."""
    stated = as_json(pool.spec).get(pool.task, {})
    for key in REQUIRED.get(pool.task, ()):
        if key not in stated:
            yield Finding(pool.task, f"{key} is missing", "add it")

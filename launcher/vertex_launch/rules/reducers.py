"""Rules that check whether a job can use reducers, and whether they are worth their cost."""

import re

from vertex_launch.errors import Finding, Findings, did_you_mean
from vertex_launch.facts import catalog
from vertex_launch.job.spec import REDUCERS, Job, Pool
from vertex_launch.plan import allreduce_cost
from vertex_launch.plan.formatting import usd
from vertex_launch.plan.reducers import bypassed
from vertex_launch.rules import containers, shells
from vertex_launch.rules.containers import Flag, flags, image_at, image_of, prebuilt_name, untagged, words
from vertex_launch.rules.machines import gbps, known
from vertex_launch.rules.rule import Declare, RuleContext, rule, rule_of_pool

CHOICE = re.compile("((dist|distributed|process_group)_?)?(backend|strategy)", re.IGNORECASE)  # how to all-reduce
rule_if_idle = Declare(Job, "The job runs, but Vertex AI bills reducers that the job doesn't use.")
LABEL = re.compile(r"^LABEL\s(?:.*\\\n)*.*google-reduction-server", re.MULTILINE)


def _trainers(context: RuleContext, job: Job) -> list[Pool]:
    """Return the training pools with GPUs or with an unknown machine type. `machine_known` reports unknown types."""
    bare = {pool.index for pool, machine in known(context, job.pools) if not (pool.accelerator or machine.needs_gpus)}
    return [pool for pool in job.training_pools if pool.index not in bare]


@rule_of_pool("reducer-pool", "error", "documented", "distributed-training")
def in_pool_2(pool: Pool, context: RuleContext) -> Findings:
    """The reduction server must run only in pool 2.
    Otherwise: The reducers run as training replicas."""
    if pool.reduces and pool.index != REDUCERS:
        fault = "the reduction server's image must run in pool 2"
        yield Finding("containerSpec.imageUri", fault, "move this pool to workerPoolSpecs[2]")


@rule_of_pool("reducer-image", "error", "documented", "distributed-training")
def image_exists(pool: Pool, context: RuleContext) -> Findings:
    """The reduction server's image must have a documented name.
    Otherwise: The reducers can't start."""
    image, known_images = image_of(pool), context.catalog.reduction_server_images.values()
    meant = containers.RESTRICTED in image and "reduc" in image.lower()
    if meant and untagged(image) not in map(untagged, known_images):
        yield Finding(containers.IMAGE[pool.task], f'there is no image "{image}"', did_you_mean(image, known_images))


@rule("reducer-region", "warning", "documented", "distributed-training")
def image_near(job: Job, context: RuleContext) -> Findings:
    """The reduction server's image should come from a registry on the job's continent.
    Otherwise: The job runs, but each reducer pulls its image from a different continent."""
    registries = {image.partition("/")[0] for image in context.catalog.reduction_server_images.values()}
    for pool in job.reducers:
        host, near = image_of(pool).partition("/")[0], context.catalog.reduction_server_image(context.settings.region)
        if near and host in registries and not near.startswith(host):
            fault = f"the registry {host} is far from {context.settings.region}"
            yield Finding(pool.at("containerSpec.imageUri"), fault, f"use {near}")


@rule("reducer-accelerator", "error", "documented", "distributed-training")
def without_accelerators(job: Job, context: RuleContext) -> Findings:
    """Reducers must not have accelerators, because they only sum gradients on CPUs.
    Otherwise: Vertex AI bills accelerators that the reducers can't use."""
    for pool in job.reducers:
        if pool.accelerator or pool.accelerator_count:
            fault = "reducers run on CPUs and can't use accelerators"
            yield Finding(pool.at("machineSpec"), fault, "remove acceleratorType and acceleratorCount")


@rule("reducer-command", "error", "documented", "distributed-training")
def without_command(job: Job, context: RuleContext) -> Findings:
    """A pool of reducers must not set command or args, because the reduction server's image has its own command.
    Otherwise: The reducers don't run the reduction server, and the workers wait for the reducers."""
    for pool in job.reducers:
        if pool.spec.container_spec.command or pool.spec.container_spec.args:
            fault = "the reduction server's image has its own command"
            yield Finding(pool.at("containerSpec"), fault, "remove command and args")


@rule_if_idle("reducer-gpus", "warning", "documented", "distributed-training")
def workers_have_gpus(job: Job, context: RuleContext) -> Findings:
    """A job with reducers should train on GPUs, because reducers support only NCCL's all-reduce."""
    trainers = {pool.index for pool in _trainers(context, job)}
    tpus = {pool.index for pool, machine in known(context, job.pools) if machine.tpu}  # `tpu_alone` reports them
    for pool in job.training_pools if job.reducers else ():
        if pool.index not in trainers | tpus:
            fault = "reducers serve only GPUs, but this pool doesn't have any"
            yield Finding(pool.at("machineSpec"), fault, "choose machines with GPUs, or remove pool 2")


@rule_if_idle("reducer-backend", "warning", "documented", "distributed-training")
def workers_use_nccl(job: Job, context: RuleContext) -> Findings:
    """A job with reducers should use NCCL to all-reduce gradients across all GPUs. Gloo and parameter servers can't use
    reducers. Strategies that split the model, such as fsdp, hsdp, tensor, and pipeline, can't use reducers, because
    they reduce gradients within groups of GPUs."""
    for pool in job.training_pools if job.reducers else ():
        env = [Flag(pool.at(pool.task, f"env[{n}].value"), one.name, one.value) for n, one in enumerate(pool.env)]
        for flag in (*env, *flags(words(pool, context))):
            for way in shells.FACTS["without_reducers"] if CHOICE.fullmatch(flag.name) else ():
                if re.fullmatch(way["names"], flag.value, re.IGNORECASE):
                    yield Finding(flag.place, f"{flag.value} {way['fault']}", f"{way['cure']}, or remove pool 2")


@rule_if_idle("reducer-machines", "warning", "inferred", "distributed-training")
def workers_are_several(job: Job, context: RuleContext) -> Findings:
    """Reducers should serve at least two machines. GPUs on a single machine all-reduce without reducers."""
    for reducers in job.reducers:
        if sum(pool.replica_count for pool in job.training_pools) == 1 and _trainers(context, job):
            fault = "reducers serve two or more machines, but this job trains on one machine"
            yield Finding(reducers.at(), fault, "add workers, or remove pool 2")


@rule("reducer-gain", "warning", "inferred", "vertex_launch/plan/allreduce_cost.py")
def worth_it(job: Job, context: RuleContext) -> Findings:
    """Reducers should not serve two machines with one GPU each. Each machine would send as much data to the reducers as
    to the other machine.
    Otherwise: The job costs more than without reducers, but isn't faster."""
    pools = _trainers(context, job)
    for reducers in job.reducers:
        if sum(pool.replica_count for pool in pools) == 2 and all(pool.accelerator_count == 1 for pool in pools):
            fault = "two single-GPU machines send as much data to reducers as to each other"
            yield Finding(reducers.at(), fault, "remove pool 2, or use more GPUs")


@rule("reducer-count", "warning", "inferred", "distributed-training", "vertex_launch/plan/allreduce_cost.py")
def enough(job: Job, context: RuleContext) -> Findings:
    """Reducers should have enough bandwidth to be faster than a ring all-reduce. The speedup is largest if the reducers
    have at least as much bandwidth as pools 0 and 1 together.
    Otherwise: The job is slower than without reducers."""
    pools = _trainers(context, job)
    count = sum(pool.replica_count for pool in pools)
    gpus = sum(pool.replica_count * pool.accelerator_count for pool in pools)
    rates = [gbps(context, pool) for pool in pools]
    if count < 2 or gpus <= 2 or not all(rates):  # other rules report these
        return
    total = sum(pool.replica_count * gbps(context, pool) for pool in pools)
    machines = allreduce_cost.Machines(count, gpus / count, min(rates))
    for reducers in job.reducers:
        rate = gbps(context, reducers)
        if rate and reducers.replica_count < allreduce_cost.break_even_reducers(machines, rate):
            ours = f"{reducers.replica_count} x {rate:g} Gbps"
            fault = (
                f"{ours} aren't enough for the {total:g} Gbps of pools 0 and 1, so the job is faster without reducers"
            )
            yield Finding(reducers.at("replicaCount"), fault, f"set it to {catalog.reducers_needed(1, total, rate)}")


@rule("reducer-fabric", "warning", "inferred", "configure-compute", "accelerator-optimized")
def off_the_fabric(job: Job, context: RuleContext) -> Findings:
    """If the GPUs have their own network, the job should not use reducers. On A3 machines with 8 GPUs and on all newer
    machines, the GPUs have their own network.
    Otherwise: NCCL loads only one network plug-in, so the GPUs can't use their own network, or the reducers are
    idle."""
    fabrics = {machine.name: machine for _, machine in known(context, job.training_pools) if machine.fabric_gbps}
    for pool in job.reducers:
        for machine in fabrics.values():
            fault = f"the GPUs of {machine.name} use their own {machine.fabric_gbps:g} Gbps network, not the reducers"
            yield Finding(pool.at(), f"{fault}{_idle(pool, context)}", "remove pool 2")


@rule_if_idle("reducer-bypassed", "warning", "inferred", "nccl", "accelerator-optimized")
def used_by_nccl(job: Job, context: RuleContext) -> Findings:
    """A job with reducers should use machines with at most 8 GPUs, because NCCL doesn't use reducers on larger ones.
    The job should not use A3 or A4 machines, because they have their own network plug-in."""
    kinds = {machine.name: pool for pool, machine in known(context, job.training_pools) if not machine.fabric_gbps}
    for reducers in job.reducers:  # `off_the_fabric` reports the machines with a fabric
        for name, pool in kinds.items():
            if reason := bypassed(name, pool.accelerator_count):
                fault = f"{reason}{_idle(reducers, context)}"
                yield Finding(reducers.at(), fault, "remove pool 2, or choose machines such as a2-highgpu-8g")


@rule("reducer-plugin", "warning", "documented", "distributed-training", "dockerfile")
def workers_have_plugin(job: Job, context: RuleContext) -> Findings:
    """The workers' image should contain the google-reduction-server plug-in. The project's image contains the plug-in
    if a LABEL in the Dockerfile lists it. Google's GPU images contain the plug-in. This rule doesn't check other
    images.
    Otherwise: NCCL doesn't find the reducers, so the reducers are billed but idle."""
    trainers = {pool.index for pool in _trainers(context, job)}
    labeled = LABEL.search(context.project.dockerfile) or not context.project.dockerfile
    for pool, image in containers.images(job) if job.reducers else ():
        prebuilt = prebuilt_name(context, image)
        if pool.index in trainers and prebuilt and "-gpu." not in prebuilt:
            yield Finding(image_at(pool), f"{prebuilt} doesn't contain the reducer plug-in", "use an image for GPUs")
        elif pool.index in trainers and containers.is_ours(context, image) and not labeled:
            fault = "the project's Dockerfile doesn't contain a LABEL that lists google-reduction-server"
            yield Finding(image_at(pool), fault, "install the plug-in and add the LABEL, or remove pool 2")


def _idle(reducers: Pool, context: RuleContext) -> str:
    price = context.catalog.price(reducers.machine_type)
    return f". The unused reducers cost {usd(reducers.replica_count * price.usd)} per hour" if price else ""

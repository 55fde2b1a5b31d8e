"""Rules for Reduction Server: when reducers work, and when they are worth their cost."""

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
rule_if_idle = Declare(Job, "The job runs, but the reducers are billed without being used.")
LABEL = re.compile(r"^LABEL\s(?:.*\\\n)*.*google-reduction-server", re.MULTILINE)


def _trainers(context: RuleContext, job: Job) -> list[Pool]:
    """Return the training pools with GPUs or with an unknown machine type, which `machine_known` reports."""
    bare = {pool.index for pool, machine in known(context, job.pools) if not (pool.accelerator or machine.needs_gpus)}
    return [pool for pool in job.training_pools if pool.index not in bare]


@rule_of_pool("reducer-pool", "error", "documented", "distributed-training")
def in_pool_2(pool: Pool, context: RuleContext) -> Findings:
    """The reduction server must run in pool 2 and in no other pool.
    Otherwise: The reducers train, or try to train."""
    if pool.reduces and pool.index != REDUCERS:
        fault = "the reduction server's image must run in pool 2"
        yield Finding("containerSpec.imageUri", fault, "move this pool to workerPoolSpecs[2]")


@rule_of_pool("reducer-image", "error", "documented", "distributed-training")
def image_exists(pool: Pool, context: RuleContext) -> Findings:
    """The reduction server's image must have a documented name.
    Otherwise: No replica of the pool can start."""
    image, known_images = image_of(pool), context.catalog.reduction_server_images.values()
    meant = containers.RESTRICTED in image and "reduc" in image.lower()
    if meant and untagged(image) not in map(untagged, known_images):
        yield Finding(containers.IMAGE[pool.task], f'there is no image "{image}"', did_you_mean(image, known_images))


@rule("reducer-region", "warning", "documented", "distributed-training")
def image_near(job: Job, context: RuleContext) -> Findings:
    """The reduction server's image should come from a registry on the job's continent.
    Otherwise: The job runs, but each reducer pulls its image from another continent."""
    registries = {image.partition("/")[0] for image in context.catalog.reduction_server_images.values()}
    for pool in job.reducers:
        host, near = image_of(pool).partition("/")[0], context.catalog.reduction_server_image(context.settings.region)
        if near and host in registries and not near.startswith(host):
            fault = f"{host} is far from {context.settings.region}"
            yield Finding(pool.at("containerSpec.imageUri"), fault, f"use {near}")


@rule("reducer-accelerator", "error", "documented", "distributed-training")
def without_accelerators(job: Job, context: RuleContext) -> Findings:
    """Reducers must not have accelerators, because they only add numbers on CPUs.
    Otherwise: Vertex AI bills accelerators that nothing uses."""
    for pool in job.reducers:
        if pool.accelerator or pool.accelerator_count:
            fault = "reducers run on CPUs and can't use accelerators"
            yield Finding(pool.at("machineSpec"), fault, "remove acceleratorType and acceleratorCount")


@rule("reducer-command", "error", "documented", "distributed-training")
def without_command(job: Job, context: RuleContext) -> Findings:
    """Reducers must have neither command nor args, because their image has its own command.
    Otherwise: The reducers run that command instead of the reduction server, and the workers wait for them."""
    for pool in job.reducers:
        if pool.spec.container_spec.command or pool.spec.container_spec.args:
            fault = "the reduction server's image has its own command"
            yield Finding(pool.at("containerSpec"), fault, "remove command and args")


@rule_if_idle("reducer-gpus", "warning", "documented", "distributed-training")
def workers_have_gpus(job: Job, context: RuleContext) -> Findings:
    """Jobs with reducers should train on GPUs, because reducers serve only the all-reduce of NCCL."""
    trainers = {pool.index for pool in _trainers(context, job)}
    tpus = {pool.index for pool, machine in known(context, job.pools) if machine.tpu}  # `tpu_alone` reports them
    for pool in job.training_pools if job.reducers else ():
        if pool.index not in trainers | tpus:
            fault = "reducers serve only GPUs, but this pool has no GPU"
            yield Finding(pool.at("machineSpec"), fault, "choose machines with GPUs, or remove pool 2")


@rule_if_idle("reducer-backend", "warning", "documented", "distributed-training")
def workers_use_nccl(job: Job, context: RuleContext) -> Findings:
    """Jobs with reducers should all-reduce gradients over all GPUs with NCCL. Gloo and parameter servers can't use
    reducers. Strategies such as fsdp, hsdp, tensor and pipeline split the model, so they add gradients in groups."""
    for pool in job.training_pools if job.reducers else ():
        env = [Flag(pool.at(pool.task, f"env[{n}].value"), one.name, one.value) for n, one in enumerate(pool.env)]
        for flag in (*env, *flags(words(pool, context))):
            for way in shells.FACTS["without_reducers"] if CHOICE.fullmatch(flag.name) else ():
                if re.fullmatch(way["names"], flag.value, re.IGNORECASE):
                    yield Finding(flag.place, f"{flag.value} {way['fault']}", f"{way['cure']}, or remove pool 2")


@rule_if_idle("reducer-machines", "warning", "inferred", "distributed-training")
def workers_are_several(job: Job, context: RuleContext) -> Findings:
    """Reducers should serve at least two machines, because the GPUs of one machine all-reduce among themselves."""
    for reducers in job.reducers:
        if sum(pool.replica_count for pool in job.training_pools) == 1 and _trainers(context, job):
            fault = "reducers serve two or more machines, but this job trains on one"
            yield Finding(reducers.at(), fault, "add workers, or remove pool 2")


@rule("reducer-gain", "warning", "inferred", "vertex_launch/plan/allreduce_cost.py")
def worth_it(job: Job, context: RuleContext) -> Findings:
    """Reducers should not serve two machines with one GPU each, which send as much to reducers as to each other.
    Otherwise: The job is as fast as without reducers, but it costs more."""
    pools = _trainers(context, job)
    for reducers in job.reducers:
        if sum(pool.replica_count for pool in pools) == 2 and all(pool.accelerator_count == 1 for pool in pools):
            fault = "two machines with one GPU each send as much to reducers as to each other"
            yield Finding(reducers.at(), fault, "remove pool 2, or use more GPUs")


@rule("reducer-count", "warning", "inferred", "distributed-training", "vertex_launch/plan/allreduce_cost.py")
def enough(job: Job, context: RuleContext) -> Findings:
    """Reducers should have enough bandwidth to be faster than a ring of the GPUs. For the full gain, they need as much
    bandwidth as pools 0 and 1 together.
    Otherwise: The job runs, but more slowly than without reducers."""
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
            fault = f"{ours} aren't enough for the {total:g} Gbps of pools 0 and 1: the job is faster without reducers"
            yield Finding(reducers.at("replicaCount"), fault, f"set it to {catalog.reducers_needed(1, total, rate)}")


@rule("reducer-fabric", "warning", "inferred", "configure-compute", "accelerator-optimized")
def off_the_fabric(job: Job, context: RuleContext) -> Findings:
    """If the GPUs have their own network, as on A3 with 8 GPUs and newer machines, the job should have no reducers.
    Otherwise: NCCL loads only one network plug-in, so the GPUs lose their own network or the reducers are idle."""
    fabrics = {machine.name: machine for _, machine in known(context, job.training_pools) if machine.fabric_gbps}
    for pool in job.reducers:
        for machine in fabrics.values():
            fault = f"the GPUs of {machine.name} use their own {machine.fabric_gbps:g} Gbps network, not the reducers"
            yield Finding(pool.at(), f"{fault}{_idle(pool, context)}", "remove pool 2")


@rule_if_idle("reducer-bypassed", "warning", "inferred", "nccl", "accelerator-optimized")
def used_by_nccl(job: Job, context: RuleContext) -> Findings:
    """Jobs with reducers should use machines with at most 8 GPUs, but not A3 and A4 machines, which have their own
    network plug-in. On other machines, NCCL doesn't use the reducers."""
    kinds = {machine.name: pool for pool, machine in known(context, job.training_pools) if not machine.fabric_gbps}
    for reducers in job.reducers:  # `off_the_fabric` reports the machines with a fabric
        for name, pool in kinds.items():
            if reason := bypassed(name, pool.accelerator_count):
                fault = f"{reason}{_idle(reducers, context)}"
                yield Finding(reducers.at(), fault, "remove pool 2, or choose machines such as a2-highgpu-8g")


@rule("reducer-plugin", "warning", "documented", "distributed-training", "dockerfile")
def workers_have_plugin(job: Job, context: RuleContext) -> Findings:
    """The workers' image should contain the plug-in google-reduction-server. The project's image contains it if the
    Dockerfile's LABEL lists it. Google's images for GPUs contain it, and other images aren't checked.
    Otherwise: NCCL doesn't find the reducers, which are billed without being used."""
    trainers = {pool.index for pool in _trainers(context, job)}
    labeled = LABEL.search(context.project.dockerfile) or not context.project.dockerfile
    for pool, image in containers.images(job) if job.reducers else ():
        prebuilt = prebuilt_name(context, image)
        if pool.index in trainers and prebuilt and "-gpu." not in prebuilt:
            yield Finding(image_at(pool), f"{prebuilt} has no reducer plug-in", "use an image for GPUs")
        elif pool.index in trainers and containers.is_ours(context, image) and not labeled:
            fault = "the project's Dockerfile has no LABEL with google-reduction-server"
            yield Finding(image_at(pool), fault, "install that package and add the LABEL, or remove pool 2")


def _idle(reducers: Pool, context: RuleContext) -> str:
    price = context.catalog.price(reducers.machine_type)
    return f". The unused reducers cost {usd(reducers.replica_count * price.usd)} per hour" if price else ""

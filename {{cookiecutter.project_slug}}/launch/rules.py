"""What Vertex AI would refuse, or spoil, only after the job was sent: where, what, and the cure.

The form of a job is already right here (launch/spec.py). An error stands on a documented fact; what is
uncertain, or merely unwise, is a warning. The facts and their sources are in launch/machines.yaml.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Literal

from google.cloud.aiplatform_v1.types import Scheduling, WorkerPoolSpec
from google.protobuf import json_format  # type: ignore[import-untyped, unused-ignore]

from launch import catalog, studies
from launch.catalog import Machine
from launch.faults import did_you_mean, nearest
from launch.settings import Settings
from launch.spec import CHIEF, REDUCERS, WORKERS, Job, Pool, TuningJob

# Source: google-cloud-aiplatform 2.7.0, the fields marked as required.
REQUIRED = {
    "containerSpec": ("imageUri",),
    "pythonPackageSpec": ("executorImageUri", "packageUris", "pythonModule"),
}

REGION = "region"  # the one place that is in vertex.toml
REPORTED = ("accuracy", "loss")  # the metrics of trainer/telemetry.py


@dataclass(frozen=True)
class Finding:
    """One thing to mend before the job is sent, or to know about it; `code` names the case."""

    code: str
    place: str
    fault: str
    cure: str
    severity: Literal["error", "warning"] = "error"

    def __str__(self) -> str:
        return f"{self.place}: {self.fault}; {self.cure}"


Findings = Iterator[Finding]
Rule = Callable[[Job, Settings], Findings]


def findings(job: Job | TuningJob, settings: Settings) -> list[Finding]:
    """Everything that the rules find, in their order; of a tuning job, first what concerns its study."""
    if isinstance(job, TuningJob):
        trials = findings(job.trial_job, settings)
        return [*study_sound(job), *metrics_reported(job), *(_in_trial(finding) for finding in trials)]
    return [finding for rule in RULES for finding in rule(job, settings)]


def study_sound(job: TuningJob) -> Findings:
    for place, text in studies.faults(job.spec):
        fault, _, cure = text.rpartition("; ")
        yield Finding("study", place, fault, cure)


def metrics_reported(job: TuningJob) -> Findings:
    for index, metric in enumerate(job.spec.study_spec.metrics):
        if metric.metric_id not in REPORTED:
            fault = f'"{metric.metric_id}" is nothing that trainer/telemetry.py reports'
            cure = f"use {' or '.join(REPORTED)}, or report it there"
            yield Finding("metric-unknown", f"studySpec.metrics[{index}].metricId", fault, cure, "warning")


def one_chief(job: Job, settings: Settings) -> Findings:
    if job.chief is None:
        cure = "describe the chief there, with replicaCount: 1"
        yield Finding("chief-count", "workerPoolSpecs[0]", "is missing or empty", cure)
    elif job.chief.replica_count != 1:
        fault = f"must be 1, the chief, not {job.chief.replica_count}"
        cure = "set it to 1 and put all others in pool 1"
        yield Finding("chief-count", job.chief.at("replicaCount"), fault, cure)


def pool_count(job: Job, settings: Settings) -> Findings:
    count, limit = len(job.spec.worker_pool_specs), settings.catalog.limits.pools
    if count > limit:
        fault = f"has {count} pools, and Vertex AI takes {limit}"
        cure = "keep the chief, workers, reducers and evaluators, in this order"
        yield Finding("pool-count", "workerPoolSpecs", fault, cure)


def pools_filled(job: Job, settings: Settings) -> Findings:
    filled = {pool.index for pool in job.pools}
    for index in range(WORKERS, len(job.spec.worker_pool_specs)):
        place = f"workerPoolSpecs[{index}]"
        if index > max(filled, default=CHIEF):
            yield Finding("pool-empty", place, "is empty, and no pool follows it", "remove it", "warning")
        elif index not in filled:
            fault = "is empty, which the API takes and gcloud refuses"
            yield Finding("pool-empty", place, fault, "submit with this project's own command", "warning")


def pools_complete(job: Job, settings: Settings) -> Findings:
    for pool in job.pools:
        if not pool.machine_type:
            cure = "choose one, such as n1-standard-8"
            yield Finding("pool-machine", pool.at("machineSpec.machineType"), "is missing", cure)
        if pool.replica_count < 1 and pool.index != CHIEF:
            fault = f"is {pool.replica_count}, so the pool has no machine"
            yield Finding("pool-replicas", pool.at("replicaCount"), fault, "set it to 1 or more")


def tasks_complete(job: Job, settings: Settings) -> Findings:
    for pool in job.pools:
        if not pool.task:
            cure = "add containerSpec with the image to run"
            yield Finding("pool-task", pool.at(), "has machines and nothing to run on them", cure)
        given = json_format.MessageToDict(WorkerPoolSpec.pb(pool.spec)).get(pool.task, {})
        for key in REQUIRED.get(pool.task, ()):
            if key not in given:
                yield Finding("pool-task", pool.at(pool.task), f"{key} is missing", "add it")


def machine_known(job: Job, settings: Settings) -> Findings:
    known = settings.catalog.machines
    for pool in job.pools:
        name = pool.machine_type
        if name and name not in known:
            fault = f'"{name}" is none of the {len(known)} types offered for training on {settings.catalog.compiled}'
            family = [other for other in known if other.startswith(name.partition("-")[0])]
            guess = nearest(name, family) or nearest(name, known)
            cure = f"did you mean {guess}?" if guess else "choose one in launch/machines.yaml"
            yield Finding("machine-unknown", pool.at("machineSpec.machineType"), fault, cure)


def accelerators_fit(job: Job, settings: Settings) -> Findings:
    for pool, machine in _machines(settings, job.pools):
        kind, count = pool.accelerator, pool.accelerator_count
        without = not (kind or count or machine.needs_gpus)
        if not (machine.tpu or without or count in machine.gpus.get(kind, ())):
            cure = _accelerators_of(settings, machine)
            yield Finding("accelerator-fit", pool.at("machineSpec"), _misfit(settings, pool, machine), cure)


def accelerators_retired(job: Job, settings: Settings) -> Findings:
    for pool, machine in _machines(settings, job.pools):
        reason = settings.catalog.retired_accelerators.get(pool.accelerator)
        if reason and pool.accelerator in machine.gpus:
            fault = f"{pool.accelerator} may be refused: {reason}"
            place = pool.at("machineSpec.acceleratorType")
            yield Finding("accelerator-retired", place, fault, "use NVIDIA_TESLA_T4 or NVIDIA_L4", "warning")


def tpu_alone(job: Job, settings: Settings) -> Findings:
    for pool, machine in _machines(settings, job.pools):
        topology = pool.spec.machine_spec.tpu_topology
        if machine.tpu and (len(job.pools), pool.replica_count) != (1, 1):
            cure = "keep pool 0 alone and choose a larger tpuTopology"
            yield Finding("tpu-alone", pool.at(), "a TPU job has one pool with one replica", cure)
        if machine.topologies and topology not in machine.topologies:
            fault = f'{machine.name} has no topology "{topology}"'
            cure = f"use one of {', '.join(machine.topologies)}"
            yield Finding("tpu-topology", pool.at("machineSpec.tpuTopology"), fault, cure)


def region_named(job: Job, settings: Settings) -> Findings:
    if not re.fullmatch("[a-z]+-[a-z]+[0-9]+", settings.region):
        cure = did_you_mean(settings.region, settings.catalog.regions)
        yield Finding("region-name", REGION, f'"{settings.region}" is no region of Google Cloud', cure)


def region_offers(job: Job, settings: Settings) -> Findings:
    regions = settings.catalog.regions
    for pool, machine in _machines(settings, job.pools):
        kind = pool.accelerator or machine.tpu
        there = [region for region, kinds in regions.items() if kind in kinds]
        if there and settings.region not in there:
            fault = f"{settings.region} offers no {kind} for training"
            cure = f"choose a region that does: {', '.join(there)}"
            yield Finding("region-accelerator", pool.at("machineSpec"), fault, cure)


def reducers_in_pool_2(job: Job, settings: Settings) -> Findings:
    for pool in job.pools:
        if pool.reduces and pool.index != REDUCERS:
            fault = "the reduction server's image runs in pool 2 only"
            cure = "move this pool to workerPoolSpecs[2]"
            yield Finding("reducer-pool", pool.at("containerSpec.imageUri"), fault, cure)


def reducers_plain(job: Job, settings: Settings) -> Findings:
    for pool in job.reducers:
        if pool.accelerator or pool.accelerator_count:
            fault = "reducers only add numbers, on CPUs"
            cure = "remove acceleratorType and acceleratorCount"
            yield Finding("reducer-accelerator", pool.at("machineSpec"), fault, cure)
        if pool.spec.container_spec.command or pool.spec.container_spec.args:
            fault = "the reduction server's image has a command of its own"
            yield Finding("reducer-command", pool.at("containerSpec"), fault, "remove command and args")


def reducers_gain(job: Job, settings: Settings) -> Findings:
    gpus = [pool for pool in job.training_pools if _has_gpus(settings, pool)]
    machine_count = sum(pool.replica_count for pool in gpus)
    for reducers in job.reducers:
        if machine_count < 2:
            fault = f"reducers serve two or more machines with GPUs, and pools 0 and 1 have {machine_count}"
            yield Finding("reducer-workers", reducers.at(), fault, "add GPU workers, or remove pool 2")
        elif machine_count == 2 and all(pool.accelerator_count == 1 for pool in gpus):
            fault = "two machines with one GPU each send as much to reducers as to each other"
            yield Finding("reducer-gain", reducers.at(), fault, "remove pool 2, or use more GPUs", "warning")


def reducers_near(job: Job, settings: Settings) -> Findings:
    registries = {image.partition("/")[0] for image in settings.catalog.reduction_server_images.values()}
    for pool in job.reducers:
        host = pool.spec.container_spec.image_uri.partition("/")[0]
        near = _nearest_image(settings)
        if near and host in registries and not near.startswith(host):
            fault = f"{host} is far from {settings.region}"
            place = pool.at("containerSpec.imageUri")
            yield Finding("reducer-image", place, fault, f"use {near}", "warning")


def reducers_enough(job: Job, settings: Settings) -> Findings:
    workers = [(pool.replica_count, _gbps(settings, pool)) for pool in job.training_pools]
    total = sum(count * gbps for count, gbps in workers)
    for pool in job.reducers:
        gbps = _gbps(settings, pool)
        if gbps and all(speed for _, speed in workers) and pool.replica_count * gbps < total:
            fault = f"{pool.replica_count} x {gbps:g} Gbps slow down pools 0 and 1, which send {total:g} Gbps"
            cure = f"set it to {catalog.reducers_needed(1, total, gbps)}"
            yield Finding("reducer-count", pool.at("replicaCount"), fault, cure, "warning")


def reducers_off_fabric(job: Job, settings: Settings) -> Findings:
    for pool, machine in _machines(settings, job.training_pools if job.reducers else ()):
        if machine.fabric_gbps:
            fault = f"its GPUs have their own {machine.fabric_gbps:g} Gbps network, without the reducers"
            place = pool.at("machineSpec.machineType")
            yield Finding("reducer-fabric", place, fault, "remove pool 2, or measure both ways", "warning")


def flex_start_machines(job: Job, settings: Settings) -> Findings:
    machines = [pool.spec.machine_spec for pool in job.pools]
    if _strategy(job) == "FLEX_START" and any(machine != machines[0] for machine in machines):
        cure = "remove the reducers" if job.reducers else "make every machineSpec the same"
        fault = "FLEX_START wants the same machines in every pool"
        yield Finding("flex-start-machines", "scheduling.strategy", fault, f"{cure}, or use SPOT")


def flex_start_accelerators(job: Job, settings: Settings) -> Findings:
    offered = settings.catalog.limits.flex_start_accelerators
    for pool in job.training_pools if _strategy(job) == "FLEX_START" else ():
        if pool.accelerator not in offered:
            fault = f"FLEX_START is offered for {', '.join(offered)}"
            place = pool.at("machineSpec.acceleratorType")
            yield Finding("flex-start-accelerator", place, fault, "choose one, or use SPOT", "warning")


def timeout(job: Job, settings: Settings) -> Findings:
    scheduling, longest = job.spec.scheduling, timedelta(seconds=settings.catalog.limits.flex_start_seconds)
    if "timeout" in scheduling and not scheduling.timeout:
        cure = "write the longest run you would pay for, such as 3600s"
        yield Finding("timeout", "scheduling.timeout", "leaves the job no time", cure)
    elif _strategy(job) == "FLEX_START" and scheduling.timeout > longest:
        fault = f"FLEX_START allows {longest.days} days"
        yield Finding("timeout", "scheduling.timeout", fault, f"write at most {longest.total_seconds():.0f}s")


def strategy_current(job: Job, settings: Settings) -> Findings:
    instead = settings.catalog.limits.deprecated_strategies.get(_strategy(job))
    if instead:
        fault = f"{_strategy(job)} is deprecated"
        yield Finding("strategy-deprecated", "scheduling.strategy", fault, f"write {instead}", "warning")


def disks(job: Job, settings: Settings) -> Findings:
    types, (smallest, largest) = settings.catalog.limits.disk_types, settings.catalog.limits.disk_gb
    for pool in job.pools:
        size, kind = pool.spec.disk_spec.boot_disk_size_gb, pool.spec.disk_spec.boot_disk_type
        if size and not smallest <= size <= largest:
            cure = f"choose {smallest} to {largest}"
            yield Finding("disk-size", pool.at("diskSpec.bootDiskSizeGb"), f"{size} GB is not offered", cure)
        if kind and kind not in types:
            cure = did_you_mean(kind, types)
            yield Finding("disk-type", pool.at("diskSpec.bootDiskType"), f'"{kind}" is not offered', cure)


def environment(job: Job, settings: Settings) -> Findings:
    limit = settings.catalog.limits.env
    for pool in job.pools:
        if len(pool.env) > limit:
            fault = f"has {len(pool.env)} variables, and Vertex AI takes {limit}"
            cure = "put the rest in a file that the trainer reads"
            yield Finding("env-count", pool.at(pool.task, "env"), fault, cure)
        for name, count in Counter(variable.name for variable in pool.env).items():
            if count > 1:
                fault = f"{name} is set {count} times"
                yield Finding("env-repeated", pool.at(pool.task, "env"), fault, "keep one of them")


def output_folder(job: Job, settings: Settings) -> Findings:
    place, prefix = "baseOutputDirectory.outputUriPrefix", job.spec.base_output_directory.output_uri_prefix
    folder = f"gs://{settings.bucket}/{job.name}"
    if not prefix:
        fault = "is missing, so neither checkpoints nor the model are kept"
        yield Finding("output-missing", place, fault, f"set it to {folder}", "warning")
    elif not prefix.startswith("gs://"):
        yield Finding("output-folder", place, f'"{prefix}" is not in a bucket', f"set it to {folder}")


def image_ours(job: Job, settings: Settings) -> Findings:
    known = {settings.image, ""}  # `tasks_complete` reports a missing one
    for pool in job.training_pools:
        image = pool.spec.container_spec.image_uri
        pinned = image.startswith(f"{settings.image.rpartition(':')[0]}@sha256:")  # by digest: the best there is
        if image not in known and not (pool.reduces or pinned):
            known.add(image)  # two pools with one image are one finding
            fault = f'"{image}" is not the image that nox -s image builds'
            cure = f"write {settings.image} here, or change image in vertex.toml"
            yield Finding("image-differs", pool.at("containerSpec.imageUri"), fault, cure, "warning")


def bucket_ours(job: Job, settings: Settings) -> Findings:
    place, prefix = "baseOutputDirectory.outputUriPrefix", job.spec.base_output_directory.output_uri_prefix
    if prefix.startswith("gs://") and not f"{prefix}/".startswith(f"gs://{settings.bucket}/"):
        fault = f'"{prefix}" is not in the bucket that vertex.toml names'
        cure = f"begin with gs://{settings.bucket}/ here, or change bucket in vertex.toml"
        yield Finding("bucket-differs", place, fault, cure, "warning")


RULES: tuple[Rule, ...] = (
    one_chief,
    pool_count,
    pools_filled,
    pools_complete,
    tasks_complete,
    machine_known,
    accelerators_fit,
    accelerators_retired,
    tpu_alone,
    region_named,
    region_offers,
    reducers_in_pool_2,
    reducers_plain,
    reducers_gain,
    reducers_near,
    reducers_enough,
    reducers_off_fabric,
    flex_start_machines,
    flex_start_accelerators,
    timeout,
    strategy_current,
    disks,
    environment,
    output_folder,
    image_ours,
    bucket_ours,
)


def _in_trial(finding: Finding) -> Finding:
    return finding if finding.place == REGION else replace(finding, place=f"trialJobSpec.{finding.place}")


def _machines(settings: Settings, pools: tuple[Pool, ...]) -> Iterator[tuple[Pool, Machine]]:
    """Pools with what is known of their machine type; `machine_known` reports the others."""
    for pool in pools:
        machine = settings.catalog.machine(pool.machine_type)
        if machine is not None:
            yield pool, machine


def _has_gpus(settings: Settings, pool: Pool) -> bool:
    """True, too, for a machine type that is not known: `machine_known` reports it."""
    machine = settings.catalog.machine(pool.machine_type)
    return bool(pool.accelerator) or machine is None or machine.needs_gpus


def _misfit(settings: Settings, pool: Pool, machine: Machine) -> str:
    kind, count = pool.accelerator, pool.accelerator_count
    if not kind and not count:
        return f"{machine.name} comes with GPUs, which the file must state"
    retired = "" if kind in machine.gpus else settings.catalog.retired_accelerators.get(kind, "")
    fault = f"{machine.name} cannot have {count} x {kind or '(no acceleratorType)'}"
    return f"{fault}: {retired}" if retired else fault


def _accelerators_of(settings: Settings, machine: Machine) -> str:
    """The cure for accelerators that do not fit: what to write for this machine."""
    if not machine.gpus:
        return "remove acceleratorType and acceleratorCount, or choose a machine with GPUs"
    if machine.needs_gpus:
        kind, (count,) = next(iter(machine.gpus.items()))
        return f"write acceleratorType: {kind} and acceleratorCount: {count}"
    current = sorted(machine.gpus.keys() - settings.catalog.retired_accelerators.keys())
    choices = [f"{'/'.join(map(str, machine.gpus[kind]))} x {kind}" for kind in current]
    return f"use {' or '.join(choices)}"


def _gbps(settings: Settings, pool: Pool) -> float:
    return settings.catalog.network_gbps(pool.machine_type, pool.accelerator, pool.accelerator_count) or 0


def _nearest_image(settings: Settings) -> str:
    try:
        return settings.catalog.reduction_server_image(settings.region)
    except ValueError:  # `region_named` reports it
        return ""


def _strategy(job: Job) -> str:
    return str(Scheduling.Strategy(job.spec.scheduling.strategy).name)

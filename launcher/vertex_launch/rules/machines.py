"""Machine types, the accelerators they can have, and their disks."""

import re
from collections.abc import Sequence

from vertex_launch.facts import aliases
from vertex_launch.facts.catalog import Catalog, Machine
from vertex_launch.rules.rule import Finding, Findings, Job, Pool, RuleContext, rule, rule_of_pool

CURRENT = "NVIDIA_TESLA_T4 or NVIDIA_L4"


def known(context: RuleContext, pools: Sequence[Pool]) -> list[tuple[Pool, Machine]]:
    """Pools with what is known of their machine type; `machine_known` reports the others."""
    return [(pool, machine) for pool in pools if (machine := context.catalog.machine(pool.machine_type))]


def gbps(context: RuleContext, pool: Pool) -> float:
    """Gbit/s that one machine of the pool sends; 0 if that is unknown."""
    return context.catalog.network_gbps(pool.machine_type, pool.accelerator, pool.accelerator_count) or 0


@rule_of_pool("machine-unknown", "error", "documented", "configure-compute")
def machine_known(pool: Pool, context: RuleContext) -> Findings:
    """The machine type is one that Vertex AI offers for training; many of Compute Engine's are not."""
    name, offered = pool.machine_type, context.catalog.machines
    if name and name not in offered:
        fault = f'"{name}" is none of the {len(offered)} types offered for training on {context.catalog.compiled}'
        cure = aliases.machine_cure(name, context.catalog)
        newer = f"A newer one goes into vertex.toml, as [machines.{name}]"
        yield Finding("machineSpec.machineType", fault, f"{cure}{'' if cure.endswith('?') else '.'} {newer}")


@rule_of_pool("accelerator-fit", "error", "documented", "configure-compute")
def accelerators_fit(pool: Pool, context: RuleContext) -> Findings:
    """The machine can have these accelerators in this number; machines that come with GPUs must state them."""
    kind, count, machine = pool.accelerator, pool.accelerator_count, context.catalog.machine(pool.machine_type)
    if machine and machine.tpu:
        fits = not kind.startswith("NVIDIA")
    else:
        fits = not machine or count in machine.gpus.get(kind, ()) or not (kind or count or machine.needs_gpus)
    if machine and not fits:
        yield Finding("machineSpec", _misfit(context.catalog, pool, machine), _cure(context.catalog, pool, machine))


@rule_of_pool("accelerator-retired", "warning", "documented", "configure-compute")
def accelerators_current(pool: Pool, context: RuleContext) -> Findings:
    """The accelerator is still supported.
    Otherwise: Vertex AI may refuse the job, or never find a machine for it."""
    kind, machine = pool.accelerator, context.catalog.machine(pool.machine_type)
    reason = context.catalog.retired_accelerators.get(kind)
    if reason and machine and kind in machine.gpus:
        yield Finding("machineSpec.acceleratorType", f"{kind}: {reason}", f"use {CURRENT}")


@rule_of_pool("gpu-partition", "warning", "documented", "api-types")
def partitions_counted(pool: Pool, context: RuleContext) -> Findings:
    """GPUs that are partitioned have a size such as 1g.10gb, and acceleratorCount is 1.
    Otherwise: Vertex AI may refuse the job."""
    size = pool.spec.machine_spec.gpu_partition_size
    if size and not re.fullmatch(r"[1-9]g\.[1-9][0-9]*gb", size):
        fault = f'"{size}" is no size of a partition'
        yield Finding("machineSpec.gpuPartitionSize", fault, "write one such as 1g.10gb")
    if size and pool.accelerator_count != 1:
        yield Finding("machineSpec.acceleratorCount", f"is {pool.accelerator_count}, of partitioned GPUs", "write 1")


@rule("tpu-alone", "error", "documented", "configure-compute")
def tpu_alone(job: Job, context: RuleContext) -> Findings:
    """A TPU job has one pool with one replica, whatever the topology."""
    for pool, machine in known(context, job.pools):
        if machine.tpu and (len(job.pools), pool.replica_count) != (1, 1):
            fault = "a TPU job has one pool with one replica"
            yield Finding(pool.at(), fault, "keep pool 0 alone and choose a larger tpuTopology")


@rule_of_pool("tpu-topology", "error", "documented", "configure-compute")
def tpu_topology(pool: Pool, context: RuleContext) -> Findings:
    """A TPU machine of v5e or newer has one of its own topologies."""
    machine, topology = context.catalog.machine(pool.machine_type), pool.spec.machine_spec.tpu_topology
    if machine and machine.topologies and topology not in machine.topologies:
        fault = f'{machine.name} has no topology "{topology}"'
        yield Finding("machineSpec.tpuTopology", fault, f"use one of {', '.join(machine.topologies)}")


@rule_of_pool("disk-size", "error", "documented", "configure-compute")
def disk_size(pool: Pool, context: RuleContext) -> Findings:
    """The boot disk has 100 to 64,000 GB; without a size it has 100."""
    (smallest, largest), size = context.catalog.limits.disk_gb, pool.spec.disk_spec.boot_disk_size_gb
    if size and not smallest <= size <= largest:
        yield Finding("diskSpec.bootDiskSizeGb", f"{size} GB is not offered", f"choose {smallest} to {largest}")


@rule_of_pool("disk-type", "error", "documented", "configure-compute")
def disk_type(pool: Pool, context: RuleContext) -> Findings:
    """The boot disk is of a type that training offers."""
    kind, types = pool.spec.disk_spec.boot_disk_type, context.catalog.limits.disk_types
    if kind and kind not in types:
        yield Finding("diskSpec.bootDiskType", f'"{kind}" is not offered', aliases.disk_cure(kind, types))


def _misfit(catalog: Catalog, pool: Pool, machine: Machine) -> str:
    kind, count = pool.accelerator, pool.accelerator_count
    if not kind and not count:
        return f"{machine.name} comes with GPUs, which the file must state"
    retired = "" if kind in machine.gpus else catalog.retired_accelerators.get(kind, "")
    return f"{machine.name} cannot have {count} x {kind or '(no acceleratorType)'}{retired and f': {retired}'}"


def _cure(catalog: Catalog, pool: Pool, machine: Machine) -> str:
    """The cure for accelerators that do not fit: what to write for this machine, or which machines have them."""
    kind, count, machines = pool.accelerator, pool.accelerator_count, catalog.machines.values()
    wanted, hosts = f"{count} x {kind}", [one.name for one in machines if count in one.gpus.get(kind, ())]
    if not hosts and kind not in machine.gpus:
        wanted, hosts = kind, [one.name for one in machines if kind in one.gpus]
    elsewhere = f"for {wanted} {aliases.choice(hosts)}, or " if hosts else ""
    return elsewhere + _of_machine(catalog, machine)


def _of_machine(catalog: Catalog, machine: Machine) -> str:
    if not machine.gpus:
        return "remove acceleratorType and acceleratorCount"
    if machine.needs_gpus:
        kind, counts = next(iter(machine.gpus.items()))
        return f"write acceleratorType: {kind} and acceleratorCount: {' or '.join(map(str, counts))}"
    current = sorted(machine.gpus.keys() - catalog.retired_accelerators.keys())
    choices = [f"{'/'.join(map(str, machine.gpus[kind]))} x {kind}" for kind in current]
    return f"use {' or '.join(choices)}"

"""Rules for machine types, their accelerators, and their disks."""

import re
from collections.abc import Sequence

from vertex_launch.facts import aliases
from vertex_launch.facts.catalog import Catalog, Machine
from vertex_launch.rules.rule import Finding, Findings, Job, Pool, RuleContext, rule, rule_of_pool

CURRENT = "NVIDIA_TESLA_T4 or NVIDIA_L4"


def known(context: RuleContext, pools: Sequence[Pool]) -> list[tuple[Pool, Machine]]:
    """Return the pools with known machine types, and facts about each type. `machine_known` reports other pools."""
    return [(pool, machine) for pool in pools if (machine := context.catalog.machine(pool.machine_type))]


def gbps(context: RuleContext, pool: Pool) -> float:
    """Return the egress bandwidth of one machine in the pool, in Gbit/s. Return 0 if the bandwidth is unknown."""
    return context.catalog.network_gbps(pool.machine_type, pool.accelerator, pool.accelerator_count) or 0


@rule_of_pool("machine-unknown", "error", "documented", "configure-compute")
def machine_known(pool: Pool, context: RuleContext) -> Findings:
    """The machine type must be available for training on Vertex AI. Many Compute Engine machine types aren't
    available."""
    name, offered = pool.machine_type, context.catalog.machines
    if name and name not in offered:
        fault = f'"{name}" isn\'t one of the {len(offered)} machine types available on {context.catalog.compiled}'
        cure = aliases.machine_cure(name, context.catalog)
        newer = f"If the machine type is newer, add it to vertex.toml as [machines.{name}]"
        yield Finding("machineSpec.machineType", fault, f"{cure}{'' if cure.endswith('?') else '.'} {newer}")


@rule_of_pool("accelerator-fit", "error", "documented", "configure-compute")
def accelerators_fit(pool: Pool, context: RuleContext) -> Findings:
    """The machine type must support the type and number of accelerators. If a machine type includes GPUs, the job must
    also specify them."""
    kind, count, machine = pool.accelerator, pool.accelerator_count, context.catalog.machine(pool.machine_type)
    if machine and machine.tpu:
        fits = not kind.startswith("NVIDIA")
    else:
        fits = not machine or count in machine.gpus.get(kind, ()) or not (kind or count or machine.needs_gpus)
    if machine and not fits:
        yield Finding("machineSpec", _misfit(context.catalog, pool, machine), _cure(context.catalog, pool, machine))


@rule_of_pool("accelerator-retired", "warning", "documented", "configure-compute")
def accelerators_current(pool: Pool, context: RuleContext) -> Findings:
    """The accelerator type should be one that Google Cloud still supports.
    Otherwise: Vertex AI might reject the job or never provide a machine."""
    kind, machine = pool.accelerator, context.catalog.machine(pool.machine_type)
    reason = context.catalog.retired_accelerators.get(kind)
    if reason and machine and kind in machine.gpus:
        yield Finding("machineSpec.acceleratorType", f"{kind}: {reason}", f"use {CURRENT}")


@rule_of_pool("gpu-partition", "warning", "documented", "api-types")
def partitions_counted(pool: Pool, context: RuleContext) -> Findings:
    """The size of a GPU partition should have a format such as 1g.10gb, and acceleratorCount should be 1.
    Otherwise: Vertex AI might reject the job."""
    size = pool.spec.machine_spec.gpu_partition_size
    if size and not re.fullmatch(r"[1-9]g\.[1-9][0-9]*gb", size):
        fault = f'"{size}" isn\'t a valid partition size'
        yield Finding("machineSpec.gpuPartitionSize", fault, "write a size such as 1g.10gb")
    if size and pool.accelerator_count != 1:
        yield Finding(
            "machineSpec.acceleratorCount",
            f"a partitioned GPU doesn't support an acceleratorCount of {pool.accelerator_count}",
            "set it to 1",
        )


@rule("tpu-alone", "error", "documented", "configure-compute")
def tpu_alone(job: Job, context: RuleContext) -> Findings:
    """A TPU job must have exactly one pool with one replica, regardless of the topology."""
    for pool, machine in known(context, job.pools):
        if machine.tpu and (len(job.pools), pool.replica_count) != (1, 1):
            fault = "a TPU job must have exactly one pool with one replica"
            yield Finding(pool.at(), fault, "keep only pool 0 and choose a larger tpuTopology")


@rule_of_pool("tpu-topology", "error", "documented", "configure-compute")
def tpu_topology(pool: Pool, context: RuleContext) -> Findings:
    """A machine with TPU v5e or newer must have a topology that its machine type supports."""
    machine, topology = context.catalog.machine(pool.machine_type), pool.spec.machine_spec.tpu_topology
    if machine and machine.topologies and topology not in machine.topologies:
        fault = f'{machine.name} doesn\'t support the topology "{topology}"'
        yield Finding("machineSpec.tpuTopology", fault, f"use one of {', '.join(machine.topologies)}")


@rule_of_pool("disk-size", "error", "documented", "configure-compute")
def disk_size(pool: Pool, context: RuleContext) -> Findings:
    """The boot disk's size must be between 100 GB and 64,000 GB. The default size is 100 GB."""
    (smallest, largest), size = context.catalog.limits.disk_gb, pool.spec.disk_spec.boot_disk_size_gb
    if size and not smallest <= size <= largest:
        yield Finding("diskSpec.bootDiskSizeGb", f"{size} GB isn't supported", f"use {smallest} to {largest} GB")


@rule_of_pool("disk-type", "error", "documented", "configure-compute")
def disk_type(pool: Pool, context: RuleContext) -> Findings:
    """The boot disk's type must be available for training on Vertex AI."""
    kind, types = pool.spec.disk_spec.boot_disk_type, context.catalog.limits.disk_types
    if kind and kind not in types:
        yield Finding("diskSpec.bootDiskType", f'"{kind}" isn\'t supported', aliases.disk_cure(kind, types))


def _misfit(catalog: Catalog, pool: Pool, machine: Machine) -> str:
    kind, count = pool.accelerator, pool.accelerator_count
    if not kind and not count:
        return f"{machine.name} includes GPUs, but the job doesn't specify them"
    retired = "" if kind in machine.gpus else catalog.retired_accelerators.get(kind, "")
    return f"{machine.name} doesn't support {count} x {kind or '(no acceleratorType)'}{retired and f': {retired}'}"


def _cure(catalog: Catalog, pool: Pool, machine: Machine) -> str:
    """Return the solution: machine types for the job's accelerators, or accelerators for its machine type."""
    kind, count, machines = pool.accelerator, pool.accelerator_count, catalog.machines.values()
    wanted, hosts = f"{count} x {kind}", [one.name for one in machines if count in one.gpus.get(kind, ())]
    if not hosts and kind not in machine.gpus:
        wanted, hosts = kind, [one.name for one in machines if kind in one.gpus]
    elsewhere = f"for {wanted}, {aliases.choice(hosts)}, or " if hosts else ""
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

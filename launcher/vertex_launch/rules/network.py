"""Rules for a job's networks and for the network file systems that the job mounts."""

import ipaddress
from collections.abc import Iterable

from vertex_launch.job.job_resource import camel
from vertex_launch.rules.rule import Finding, Findings, Job, Pool, RuleContext, rule, rule_of_pool

ROOTS = {"nfs_mounts": "/mnt/nfs/", "lustre_mounts": "/mnt/lustre/"}  # the folders in which they are mounted
# Source: google-cloud-aiplatform 2.7.0, the fields marked as required.
REQUIRED = {
    "nfs_mounts": ("server", "path", "mount_point"),
    "lustre_mounts": ("instance_ip", "volume_handle", "filesystem", "mount_point"),
    "dns_peering_configs": ("domain", "target_project", "target_network"),
}


def _missing(kind: str, messages: Iterable[object], place: str) -> Findings:
    for index, message in enumerate(messages):
        for field in REQUIRED[kind]:
            if not getattr(message, field):
                yield Finding(f"{place}{camel(kind)}[{index}].{camel(field)}", "is missing", "add it")


@rule_of_pool("mount-field", "error", "documented", "api-types", "nfs")
def mounts_whole(pool: Pool, context: RuleContext) -> Findings:
    """A mount must have all required fields, such as the server, path, and mount point of an NFS share."""
    for kind in ROOTS:
        yield from _missing(kind, getattr(pool.spec, kind), "")


@rule_of_pool("mount-path", "error", "documented", "api-types", "nfs")
def mounts_named(pool: Pool, context: RuleContext) -> Findings:
    """An NFS mount must specify the NFS server's IP address and a path that begins with /."""
    for index, mount in enumerate(pool.spec.nfs_mounts):
        place = f"nfsMounts[{index}]"
        if mount.server and not _is_address(mount.server):
            yield Finding(
                f"{place}.server", f'"{mount.server}" isn\'t an IP address', "write an IP address such as 10.0.0.2"
            )
        if mount.path and not mount.path.startswith("/"):
            yield Finding(f"{place}.path", f'"{mount.path}" doesn\'t begin with /', f"write /{mount.path}")


def _is_address(text: str) -> bool:
    try:
        return ipaddress.ip_address(text) is not None
    except ValueError:
        return False


@rule_of_pool("mount-point", "warning", "inferred", "api-types", "nfs")
def mounted_below(pool: Pool, context: RuleContext) -> Findings:
    """The mount point of an NFS share should be the name of a folder in /mnt/nfs. The mount point of a Lustre file
    system should be the name of a folder in /mnt/lustre.
    Otherwise: Vertex AI rejects the job, or the program looks for its files in the wrong folder."""
    for kind, root in ROOTS.items():
        for index, mount in enumerate(getattr(pool.spec, kind)):
            name, cure = (
                mount.mount_point.removeprefix(root).rstrip("/"),
                f"write a name such as data, which becomes the folder {root}data",
            )
            if mount.mount_point and (name.startswith("/") or not name or ".." in name.split("/")):
                fault = f'"{mount.mount_point}" isn\'t a folder in {root}'
                yield Finding(f"{camel(kind)}[{index}].mountPoint", fault, cure)


@rule("mount-network", "error", "documented", "nfs")
def mounts_reached(job: Job, context: RuleContext) -> Findings:
    """A job that mounts NFS shares must specify their network, in the network field or in pscInterfaceConfig."""
    reached = job.spec.network or job.spec.psc_interface_config.network_attachment
    # The machines of a persistent resource have a network already.
    if not (reached or job.spec.persistent_resource_id):
        for pool in job.pools:
            if pool.spec.nfs_mounts:
                cure = "add network, or add pscInterfaceConfig with a networkAttachment"
                yield Finding(pool.at("nfsMounts"), "NFS requires a network, but the job doesn't specify one", cure)


@rule("ip-ranges", "warning", "inferred", "api-types")
def ranges_in_a_network(job: Job, context: RuleContext) -> Findings:
    """A job with reserved IP ranges should also specify their network.
    Otherwise: Vertex AI rejects the job or ignores the ranges."""
    if job.spec.reserved_ip_ranges and not job.spec.network:
        yield Finding(
            "reservedIpRanges",
            "IP ranges require a network, but the job doesn't specify one",
            "add network, or remove reservedIpRanges",
        )


@rule("dns-peering", "error", "documented", "api-types")
def domains_whole(job: Job, context: RuleContext) -> Findings:
    """A DNS peering must specify a project, a network, and a domain that ends with a dot."""
    configs, place = job.spec.psc_interface_config.dns_peering_configs, "pscInterfaceConfig."
    yield from _missing("dns_peering_configs", configs, place)
    for index, config in enumerate(configs):
        if config.domain and not config.domain.endswith("."):
            at = f"{place}dnsPeeringConfigs[{index}].domain"
            yield Finding(at, f'"{config.domain}" doesn\'t end with a dot', f"write {config.domain}.")

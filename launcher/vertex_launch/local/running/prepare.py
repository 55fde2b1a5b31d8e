"""Prepares a job's replicas to start on this machine. Both the command line and the service use this module.

Several sources can set the same environment variable for a replica. From highest to lowest precedence, the sources
are the service, the job, [env] and `--pass-env`, and this machine.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Event

from vertex_launch.job.contract import Replica, replicas, require_commands
from vertex_launch.job.spec import Job
from vertex_launch.job.state_dir import output_folder
from vertex_launch.local import google
from vertex_launch.local.running import containers, host, hosts, nfs, packages, restart_policy
from vertex_launch.local.running.context import Context
from vertex_launch.local.running.faults import Fault, armed
from vertex_launch.local.running.namespaces import Isolation, isolation
from vertex_launch.local.running.restart_policy import Policy
from vertex_launch.settings import for_local

# The ports on which the SDK's profiler listens in a job with a TensorBoard. Replicas on one machine can't share ports.
PROFILER_PORTS = ("AIP_HTTP_HANDLER_PORT", "AIP_TF_PROFILER_PORT")
# Machines on which gcsfuse renames folders. Source: GoogleCloudPlatform/gcsfuse, cfg/params.yaml, August 2026
LARGE = re.compile(r"a2-megagpu-16g|a2-ultragpu-8g|a3-\w+-8g|a4.*|ct[56].*|tpu7x.*")


@dataclass(frozen=True)
class Extras:
    """Settings that a tuning trial or a training pipeline adds to its job."""

    env: Mapping[str, str] = field(default_factory=dict)
    trial: str = ""  # the ID of the trial


@dataclass(frozen=True)
class PreparedJob:
    """A job that is ready to run: its replicas, log folder, restart policy, isolation, and simulated faults."""

    replicas: tuple[Replica, ...]
    logs: Path  # the folder with one log file for each replica
    policy: Policy = field(default_factory=Policy)
    isolation: Isolation = field(default_factory=isolation)
    faults: Sequence[Fault] = ()
    addresses: Mapping[str, str] = field(default_factory=dict)  # name of each training replica -> IP address


def size(job: Job) -> int:
    """Return the number of replicas that start on this machine.

    Reducers never start on this machine, because only Google's image contains their program.
    """
    return sum(pool.replica_count for pool in job.pools if not pool.reduces)


def prepare(
    job: Job, job_id: str, context: Context, extras: Extras | None = None, stopping: Event = packages.NEVER
) -> PreparedJob:
    """Assign hosts, CPU and GPU shares, environment variables, folders, and installed packages to a job's replicas.

    Reducers receive only a host. The `stopping` event is set when the job is no longer needed. Raises FaultError if
    only the image defines a pool's command or if a simulated fault specifies an unknown replica. Raises FaultError if
    an image, the output folder's bucket, an NFS mount, or a package isn't available.
    """
    state_dir = context.state_dir
    logs, policy = state_dir.logs(job_id), restart_policy.policy(job, context.options)
    client = context.options.containers
    isolated = Isolation("container") if client else isolation(state_dir.buckets)
    machines = hosts.of_job(job, job_id, named=bool(client or isolated.hosts))
    started = _placed(job, job_id, context, extras or Extras(), machines)
    folders = nfs.folders(job, state_dir)
    if client:
        contained = [containers.contained(job, job_id, one, machines, folders, context) for one in started]
        return PreparedJob(tuple(contained), logs, policy, isolated)
    nfs.require_mounts(job, isolated)
    if isolated.hosts:
        # Google's hostnames direct clients that bypass the proxy to a closed port. The metadata server doesn't require
        # a proxy.
        away = dict.fromkeys(google.names(for_local(context.settings).region), hosts.LOOPBACK) if context.wire else {}
        away |= dict.fromkeys(google.METADATA, context.metadata) if context.metadata else {}
        isolated = replace(isolated, hosts=hosts.write(state_dir.hosts(job_id), machines.values(), away))
    ready = packages.prepared(job, started, logs, state_dir.buckets, context.environ, stopping)
    large = frozenset(pool.index for pool in job.pools if LARGE.fullmatch(pool.machine_type))
    isolated, ordered = replace(isolated, folders=folders, large=large), context.options.faults
    addresses = {one.name: machines[one.pool, one.index].ip for one in ready if one.trains}
    return PreparedJob(armed(job, ready, ordered), logs, policy, isolated, ordered, addresses)


def _placed(job: Job, job_id: str, context: Context, extras: Extras, machines: hosts.Hosts) -> list[Replica]:
    """Return the replicas that start on this machine, with all their environment variables."""
    state_dir, environ, settings = context.state_dir, context.environ, context.settings
    if client := context.options.containers:
        containers.require_images(job, client)
    commands = containers.entry_points(job) if client else settings.commands
    require_commands(job, commands)
    state_dir.folder.mkdir(parents=True, exist_ok=True)
    if output := output_folder(job, state_dir):  # in the cloud, the bucket exists before the job
        (state_dir.buckets / output.relative_to(state_dir.buckets).parts[0]).mkdir(parents=True, exist_ok=True)

    def additions(replica: str) -> dict[str, str]:
        metrics = {containers.METRIC_FILE: str(state_dir.metrics(job_id, replica))} if extras.trial else {}
        ports = hosts.free_ports(len(PROFILER_PORTS)) if job.spec.tensorboard else ()
        return {**extras.env, **metrics, **dict(zip(PROFILER_PORTS, map(str, ports), strict=False))}

    as_ps = context.options.reducers_as_ps
    local = for_local(settings)
    everyone = replicas(
        *(job, job_id, lambda *place: machines[place].address, extras.trial, as_ps, commands, additions),
        project=local.project,
        region=local.region,
    )
    started = [replica for replica in everyone if not replica.reduces]
    named, shares = host.passed(environ, settings.env), host.shares(host.visible_gpus(environ), len(started))
    wire = {**context.wire, **hosts.off_the_proxy({**environ, **context.wire}, machines.values())}
    base = {} if client else host.image_environment(environ, state_dir, job_id)
    return [
        replace(one, env={**base, **share, **wire, **named, **one.env, **machines[one.pool, one.index].env})
        for one, share in zip(started, shares, strict=True)
    ]

"""A job's replicas on this machine: where each listens, its share of the machine, and all that its command sees.

What a variable is, is said by the service or else by the job, else by [env] and --pass-env, else by this machine.
"""

from collections.abc import Mapping
from dataclasses import replace

from vertex_launch.local.running import host
from vertex_launch.replicas import Extras, Replica, nothing, replicas, require_commands
from vertex_launch.settings import Settings
from vertex_launch.spec import Job
from vertex_launch.state_dir import StateDir, output_folder


def place(
    job: Job,
    job_id: str,
    state_dir: StateDir,
    environ: Mapping[str, str],
    settings: Settings,
    trial: str = "",
    reducers_as_ps: bool = True,
    extras: Extras = nothing,
) -> list[Replica]:
    """Every replica of the job, reducers too, at loopback addresses.

    Args:
        environ: the shell's environment, of which little reaches a replica.
        trial, reducers_as_ps, extras: see `launch.replicas.replicas`.

    Raises:
        CommandError: what a pool runs is known only to its image.
        OutputError: the job's output folder is none in a bucket.
    """
    require_commands(job, settings.commands)
    state_dir.folder.mkdir(parents=True, exist_ok=True)
    output = output_folder(job, state_dir)
    if output:  # the cloud's buckets were there before the job
        (state_dir.buckets / output.relative_to(state_dir.buckets).parts[0]).mkdir(parents=True, exist_ok=True)
    free = iter(host.free_addresses(sum(pool.replica_count for pool in job.pools)))
    everyone = replicas(job, job_id, lambda pool, index: next(free), trial, reducers_as_ps, settings.commands, extras)
    base = host.image_environment(environ, state_dir, job_id)
    named = host.passed(environ, settings.env)
    started = [replica.name for replica in everyone if not replica.reduces]
    shares = dict(zip(started, host.shares(host.visible_gpus(environ), len(started)), strict=True))
    return [replace(one, env={**base, **shares.get(one.name, {}), **named, **one.env}) for one in everyone]

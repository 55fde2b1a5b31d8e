"""A job's replicas on this machine: where each listens, its share of the machine, and all that its command sees.

What a variable is, is said by the service or else by the job, else by [env] and --pass-env, else by this machine.
"""

from collections.abc import Mapping
from dataclasses import replace

from launch.emulator.home import Home, output_folder
from launch.emulator.running import laptop
from launch.replicas import Extras, Replica, nothing, replicas, require_commands
from launch.settings import Settings
from launch.spec import Job


def place(
    job: Job,
    job_id: str,
    home: Home,
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
    home.folder.mkdir(parents=True, exist_ok=True)
    output = output_folder(job, home)
    if output:  # the cloud's buckets were there before the job
        (home.buckets / output.relative_to(home.buckets).parts[0]).mkdir(parents=True, exist_ok=True)
    free = iter(laptop.free_addresses(sum(pool.replica_count for pool in job.pools)))
    everyone = replicas(job, job_id, lambda pool, index: next(free), trial, reducers_as_ps, settings.commands, extras)
    base = laptop.image_environment(environ, home, job_id)
    named = laptop.passed(environ, settings.env)
    started = [replica.name for replica in everyone if not replica.reduces]
    shares = dict(zip(started, laptop.shares(laptop.visible_gpus(environ), len(started)), strict=True))
    return [replace(one, env={**base, **shares.get(one.name, {}), **named, **one.env}) for one in everyone]

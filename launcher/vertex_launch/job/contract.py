"""Determines each replica's command and environment variables, exactly as Vertex AI does.

Google's notebooks for custom images read the node-level variables RANK, WORLD_SIZE, MASTER_ADDR, and MASTER_PORT.
Source: Vertex AI documentation, "Distributed training" and "Code requirements", mid-2026.
Source of AIP_EXPERIMENT_* and AIP_TENSORBOARD_*: google-cloud-aiplatform 2.7.0, metadata/metadata.py and
training_utils/environment_variables.py.
Source of references such as $(AIP_MODEL_DIR): Kubernetes, third_party/forked/golang/expansion; google-cloud-aiplatform
2.7.0, types/env_var.py.
"""

import hashlib
import json
import re
from collections import ChainMap
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from google.cloud.aiplatform_v1.types.custom_job import CustomJobSpec, WorkerPoolSpec
from google.cloud.aiplatform_v1.types.env_var import EnvVar

from vertex_launch.errors import FaultError, Finding
from vertex_launch.job.job_resource import id_of
from vertex_launch.job.spec import CHIEF, EVALUATORS, WORKERS, Job, Pool, as_json
from vertex_launch.settings import LOCAL

TRAINING_POOLS = (CHIEF, WORKERS)
REFERENCE = re.compile(r"\$(?:\$|\(([^)]*)\))")  # a reference to a variable

# The names of the pools in TF_CONFIG, by position.
ROLES = ("chief", "worker", "ps", "evaluator")

DIGITS = 12  # in a project number
TRAINER, EVALUATOR = "trainer.task", "trainer.evaluator"  # a project's programs, which accept the same flags

Address = Callable[[int, int], str]  # pool and index of a replica -> host:port
Members = Mapping[int, Sequence[str]]  # pool -> addresses of its replicas
Commands = Mapping[str, Sequence[str]]  # image -> its entry point, for pools without a command
Additions = Callable[[str], Mapping[str, str]]  # name of a replica -> additional variables that the service sets


@dataclass(frozen=True)
class Replica:
    """A replica of a job. If the command is empty, the replica runs the image's entry point, which is unknown."""

    pool: int
    index: int
    command: tuple[str, ...]
    env: Mapping[str, str]
    reduces: bool = False  # a reduction server, which only Google's image contains

    @property
    def name(self) -> str:
        return f"workerpool{self.pool}-{self.index}"

    @property
    def trains(self) -> bool:
        return self.pool in TRAINING_POOLS


def require_commands(job: Job, commands: Commands) -> None:
    """Raise FaultError if a worker pool's command is unknown. Reducers don't require a command."""
    fault = "the job doesn't set a command, and the image's own command isn't known on this machine"
    cure = 'add a command, or set the image\'s command under [commands] in vertex.toml: "{}" = ["PROGRAM", "ARGUMENT"]'
    unknown = [pool for pool in job.pools if not (command(pool, commands) or pool.reduces)]
    images = ((pool.at("containerSpec"), pool.spec.container_spec.image_uri) for pool in unknown)
    if findings := [Finding(place, fault, cure.format(image)) for place, image in images]:
        raise FaultError(*findings, file=job.origin)


def replicas(
    job: Job,
    job_id: str,
    address: Address,
    trial: str = "",
    reducers_as_ps: bool = True,
    commands: Commands = MappingProxyType({}),
    additions: Additions = lambda replica: {},
    project: str = LOCAL["project"],
    region: str = LOCAL["region"],
) -> tuple[Replica, ...]:
    """Return all replicas of a job, starting with the chief.

    Each reference $(NAME) in the job is replaced with the value of the variable NAME. `trial` is the ID of the tuning
    trial that the job runs. The documentation doesn't state whether TF_CONFIG lists reducers as "ps", so a trainer must
    work in either case.
    """
    members = {
        pool.index: [address(pool.index, index) for index in range(pool.replica_count)]
        for pool in job.pools
        if pool.replica_count
    }
    place = {"CLOUD_ML_PROJECT_ID": project_number(project), "CLOUD_ML_REGION": region}
    same = place | _same_for_all(job, job_id, trial)
    job_json = as_json(job.spec)
    hidden = (EVALUATORS,) if reducers_as_ps else (EVALUATORS, *(pool.index for pool in job.reducers))
    everyone = []
    for pool in job.pools:
        for index in range(pool.replica_count):
            bare = Replica(pool.index, index, (), {}, pool.reduces)
            env = same | _cluster_variables(bare, members, hidden, trial, job_json) | {**additions(bare.name)}
            env = expanded(pool.env, env) | env
            everyone.append(replace(bare, command=command(pool, commands, env), env=env))
    return tuple(everyone)


def project_number(project: str) -> str:
    """Return the project number that the local Vertex assigns to a project ID.

    The number assigned to a project ID is the same in every run. If `project` is already a number, return it unchanged.
    """
    digest = int(hashlib.sha256(project.encode()).hexdigest(), 16)
    return project if project.isdigit() else str(10 ** (DIGITS - 1) + digest % (9 * 10 ** (DIGITS - 1)))


def limit(job: Job, count: int) -> Job:
    """Return the job with its chief, at most `count` - 1 workers, and all replicas that don't train."""
    spec = CustomJobSpec(job.spec)
    pools = list(spec.worker_pool_specs)
    if len(pools) > WORKERS:
        pools[WORKERS].replica_count = min(pools[WORKERS].replica_count, count - 1)
        if not pools[WORKERS].replica_count:  # a machineSpec with 0 replicas would be an error
            pools[WORKERS] = WorkerPoolSpec()
            spec.worker_pool_specs = pools
    return replace(job, spec=spec)


def with_arguments(job: Job, arguments: Sequence[str]) -> Job:
    """Append arguments to the commands of the pools that `argument_pools` returns."""
    extended = replace(job, spec=CustomJobSpec(job.spec))
    for pool in argument_pools(extended):
        task = pool.spec.python_package_spec if pool.task == "pythonPackageSpec" else pool.spec.container_spec
        task.args.extend(arguments)
    return extended


def argument_pools(job: Job) -> list[Pool]:
    """Return the pools that train, serve parameters, evaluate, or run the chief's program."""

    def takes(pool: Pool) -> bool:
        return pool.trains or pool.serves or EVALUATOR in _program(pool) or _program(pool) == _program(job.pools[0])

    return [*filter(takes, job.pools)]


def command(pool: Pool, commands: Commands, variables: Mapping[str, str] = MappingProxyType({})) -> tuple[str, ...]:
    """Return a replica's command with all arguments. Return () if only the image defines the command.

    The job's command overrides the image's entry point. References in the job's command and arguments are expanded, but
    those in the image's entry point aren't.
    """
    if pool.task == "pythonPackageSpec":
        # -P: a folder in the working directory must not hide the package.
        package = pool.spec.python_package_spec
        return ("python", "-P", "-m", package.python_module, *(expand(word, variables) for word in package.args))
    container = pool.spec.container_spec
    own = [expand(word, variables) for word in container.command]
    start = own or commands.get(container.image_uri, ())
    return (*start, *(expand(word, variables) for word in container.args)) if start else ()


def expand(text: str, variables: Mapping[str, str]) -> str:
    """Replace each $(NAME) with the variable's value, and $$ with $. Don't replace unknown variables."""

    def value(match: re.Match[str]) -> str:
        return "$" if match[1] is None else variables.get(match[1], match[0])

    end = text.rfind(")") + 1  # no reference can end after this position, and searching for an end would be slow
    return REFERENCE.sub(value, text[:end]) + text[end:].replace("$$", "$")


def expanded(env: Iterable[EnvVar], service_env: Mapping[str, str]) -> dict[str, str]:
    """Return the environment variables that a job sets.

    A variable's value can refer to earlier variables and to variables in `service_env`.
    """
    variables: dict[str, str] = {}
    both = ChainMap({**service_env}, variables)
    for variable in env:
        variables[variable.name] = expand(variable.value, both)
    return variables


def _program(pool: Pool) -> tuple[str, ...]:
    package, container = pool.spec.python_package_spec, pool.spec.container_spec
    return (package.executor_image_uri, package.python_module, container.image_uri, *container.command)


def _same_for_all(job: Job, job_id: str, trial: str) -> dict[str, str]:
    """Return the environment variables that are the same in all replicas. Each trial has its own output folders."""
    env = {"CLOUD_ML_JOB_ID": job_id}
    if trial:
        env["CLOUD_ML_TRIAL_ID"] = trial
    if job.spec.tensorboard:
        env["AIP_TENSORBOARD_RESOURCE_NAME"] = job.spec.tensorboard
        env["AIP_TENSORBOARD_API_URI"] = "aiplatform.googleapis.com"  # the SDK's profiler prepends the region
    if job.spec.experiment:
        env["AIP_EXPERIMENT_NAME"] = experiment = id_of(job.spec.experiment)
        if job.spec.experiment_run:
            env["AIP_EXPERIMENT_RUN_NAME"] = id_of(job.spec.experiment_run).removeprefix(f"{experiment}-")
    if output := job.spec.base_output_directory.output_uri_prefix.rstrip("/"):
        folder = f"{output}/{trial}" if trial else output
        env["AIP_MODEL_DIR"] = f"{folder}/model/"
        env["AIP_CHECKPOINT_DIR"] = f"{folder}/checkpoints/"
        env["AIP_TENSORBOARD_LOG_DIR"] = f"{folder}/logs/"
    return env


def _cluster_variables(
    replica: Replica, members: Members, hidden: Sequence[int], trial: str, job_json: Mapping[str, Any]
) -> dict[str, str]:
    """Return the environment variables that describe the cluster. TF_CONFIG doesn't list the `hidden` pools."""
    task = {"index": replica.index} | ({"trial": trial} if trial else {})
    cluster_spec = {
        "cluster": {f"workerpool{pool}": addresses for pool, addresses in members.items()},
        "environment": "cloud",
        "task": {"type": f"workerpool{replica.pool}", **task},
        "job": job_json,
    }
    env = {"CLUSTER_SPEC": json.dumps(cluster_spec)}
    if sum(map(len, members.values())) == 1:
        return env
    tf_config = {
        "cluster": {ROLES[pool]: addresses for pool, addresses in members.items() if pool not in hidden},
        "environment": "cloud",
        "task": {"type": ROLES[replica.pool], "cloud": "local", **task},
        "job": json.dumps(job_json),
    }
    return env | {"TF_CONFIG": json.dumps(tf_config)} | (_node_level(replica, members) if replica.trains else {})


def _node_level(replica: Replica, members: Members) -> dict[str, str]:
    """Return RANK, WORLD_SIZE, MASTER_ADDR, and MASTER_PORT.

    Ranks and the world size refer to machines, not processes.
    """
    training = [(pool, index) for pool in TRAINING_POOLS for index in range(len(members.get(pool, ())))]
    host, _, port = members[CHIEF][0].rpartition(":")
    return {
        "RANK": str(training.index((replica.pool, replica.index))),
        "WORLD_SIZE": str(len(training)),
        "MASTER_ADDR": host,
        "MASTER_PORT": port,
    }

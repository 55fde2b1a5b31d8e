"""Who runs: every replica of a job with its command and its exact environment.

Source: Vertex AI documentation, "Distributed training" and "Code requirements", mid 2026; the node-level
RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT are what Google's notebooks for custom images read.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from google.cloud.aiplatform_v1.types import CustomJobSpec
from google.protobuf import json_format  # type: ignore[import-untyped, unused-ignore]

from launch.faults import FaultError
from launch.spec import CHIEF, EVALUATORS, WORKERS, Job, Pool

TRAINING_POOLS = (CHIEF, WORKERS)

# TF_CONFIG's names of the pools, by position.
ROLES = ("chief", "worker", "ps", "evaluator")

# The service gives the number of its own project, which no code should rely on.
PROJECT_NUMBER = "000000000000"

Address = Callable[[int, int], str]
Members = Mapping[int, tuple[str, ...]]  # pool -> addresses of its replicas


class CommandError(FaultError):
    """The job runs only in its image; one line for each pool whose command it does not say."""


@dataclass(frozen=True)
class Replica:
    """One machine of the job; `command` is empty where the image's own entry point runs."""

    pool: int
    index: int
    command: tuple[str, ...]
    env: Mapping[str, str]
    reduces: bool = False  # a reduction server: Google's image, which sums gradients and trains nothing

    @property
    def name(self) -> str:
        return f"workerpool{self.pool}-{self.index}"

    @property
    def trains(self) -> bool:
        return self.pool in TRAINING_POOLS


def require_commands(job: Job) -> None:
    """Raises CommandError unless the job says what runs in every pool but that of the reducers."""
    faults = []
    for pool in job.pools:
        if pool.spec.python_package_spec:
            faults.append(f"{job.path}: {pool.at('pythonPackageSpec')}: runs only in Google's image; submit the job")
        elif not (pool.spec.container_spec.command or pool.reduces):
            cure = 'add one, such as command: ["python", "-m", "trainer.task"]'
            faults.append(
                f"{job.path}: {pool.at('containerSpec')}: no command, and without the image it is not known; {cure}"
            )
    if faults:
        raise CommandError(*faults)


def replicas(job: Job, job_id: str, address: Address) -> tuple[Replica, ...]:
    """All replicas, chief first. `address(pool, index)` says where one listens, as host:port."""
    members = {
        pool.index: tuple(address(pool.index, index) for index in range(pool.replica_count))
        for pool in job.pools
        if pool.replica_count
    }
    return tuple(
        Replica(pool.index, index, _command(pool), _environment(job, members, pool, index, job_id), pool.reduces)
        for pool in job.pools
        for index in range(pool.replica_count)
    )


def limit(job: Job, count: int) -> Job:
    """The same job with at most `count` replicas that train: the chief and count - 1 workers."""
    spec = CustomJobSpec(job.spec)
    for workers in list(spec.worker_pool_specs)[WORKERS : WORKERS + 1]:
        workers.replica_count = min(workers.replica_count, count - 1)
    return replace(job, spec=spec)


def with_arguments(job: Job, arguments: Sequence[str]) -> Job:
    """The same job with these arguments added to what its training replicas run."""
    extended = replace(job, spec=CustomJobSpec(job.spec))
    for pool in extended.pools:
        if pool.trains:
            pool.spec.container_spec.args.extend(arguments)
    return extended


def _command(pool: Pool) -> tuple[str, ...]:
    return (*pool.spec.container_spec.command, *pool.spec.container_spec.args)


def _environment(job: Job, members: Members, pool: Pool, index: int, job_id: str) -> dict[str, str]:
    env = {variable.name: variable.value for variable in pool.spec.container_spec.env}
    env |= {
        "CLUSTER_SPEC": json.dumps(_cluster_spec(job, members, pool, index)),
        "CLOUD_ML_JOB_ID": job_id,
        "CLOUD_ML_PROJECT_ID": PROJECT_NUMBER,
    }
    if sum(map(len, members.values())) > 1:
        env["TF_CONFIG"] = json.dumps(_tf_config(job, members, pool, index))
        env |= _node_level(members, pool, index)
    return env | _folders(job)


def _cluster_spec(job: Job, members: Members, pool: Pool, index: int) -> dict[str, Any]:
    return {
        "cluster": {f"workerpool{number}": list(addresses) for number, addresses in members.items()},
        "environment": "cloud",
        "task": {"type": f"workerpool{pool.index}", "index": index},
        "job": _as_json(job),
    }


def _tf_config(job: Job, members: Members, pool: Pool, index: int) -> dict[str, Any]:
    # Whether the service lists reducers as "ps" is not documented; a trainer must survive that it does.
    cluster = {ROLES[number]: list(members[number]) for number in members if number != EVALUATORS}
    return {
        "cluster": cluster,
        "environment": "cloud",
        "task": {"type": ROLES[pool.index], "index": index, "cloud": "local"},
        "job": json.dumps(_as_json(job)),
    }


def _as_json(job: Job) -> dict[str, Any]:
    return json_format.MessageToDict(CustomJobSpec.pb(job.spec))


def _node_level(members: Members, pool: Pool, index: int) -> dict[str, str]:
    """The launch variables of the replicas that train; they count machines, not processes."""
    training = [(number, i) for number in TRAINING_POOLS for i in range(len(members.get(number, ())))]
    if (pool.index, index) not in training:
        return {}
    host, _, port = members[CHIEF][0].rpartition(":")
    return {
        "RANK": str(training.index((pool.index, index))),
        "WORLD_SIZE": str(len(training)),
        "MASTER_ADDR": host,
        "MASTER_PORT": port,
    }


def _folders(job: Job) -> dict[str, str]:
    prefix = job.spec.base_output_directory.output_uri_prefix.rstrip("/")
    if not prefix:
        return {}
    return {
        "AIP_MODEL_DIR": f"{prefix}/model/",
        "AIP_CHECKPOINT_DIR": f"{prefix}/checkpoints/",
        "AIP_TENSORBOARD_LOG_DIR": f"{prefix}/logs/",
    }

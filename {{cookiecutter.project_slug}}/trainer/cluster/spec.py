"""Who trains, in which order, and which replica this is: CLUSTER_SPEC (or TF_CONFIG) -> Cluster.

Vertex AI names four worker pools by position: 0 the chief, 1 the workers, 2 reducers or parameter
servers, 3 evaluators. Only pools 0 and 1 train. Reducers run Google's image; parameter servers run our
command, and what tells them apart is a flag of it. `RANK` and `WORLD_SIZE` are never read: on Vertex
they count machines, not processes.
Source: Vertex AI documentation, "Distributed training", CLUSTER_SPEC and TF_CONFIG, mid 2026.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trainer.vertex.errors import TrainerError

CHIEF, WORKERS, SERVERS, EVALUATORS = POOLS = ("workerpool0", "workerpool1", "workerpool2", "workerpool3")

# Older runtimes call the chief "master"; both are the one replica of pool 0.
POOL_OF_ROLE = {"chief": CHIEF, "master": CHIEF, "worker": WORKERS, "ps": SERVERS, "evaluator": EVALUATORS}

SHAPE = 'expected {"cluster": {...}, "task": {...}}'


class ClusterError(TrainerError):
    """The environment describes no cluster; the text names the key and the expected shape."""


@dataclass(frozen=True)
class Node:
    """One replica: its name, as in the job's logs, and its address, `host:port`."""

    name: str
    address: str

    @property
    def is_local(self) -> bool:
        """True where all replicas share one machine, as in the local Vertex."""
        return self.host in ("localhost", "127.0.0.1", "::1")

    @property
    def host(self) -> str:
        return self.address.rpartition(":")[0].strip("[]")

    @property
    def port(self) -> int:
        return int(self.address.rpartition(":")[2])


@dataclass(frozen=True)
class Cluster:
    """The replicas that train, chief first; the others, which never count; and which one this is."""

    nodes: tuple[Node, ...] = (Node("workerpool0-0", "localhost:29500"),)
    name: str = "workerpool0-0"
    servers: tuple[Node, ...] = ()  # pool 2: reducers or parameter servers
    evaluators: tuple[Node, ...] = ()
    trial: str = ""  # id of the tuning trial, if this job is one

    @property
    def chief(self) -> Node:
        return self.nodes[0]

    @property
    def trains(self) -> bool:
        return any(node.name == self.name for node in self.nodes)

    @property
    def evaluates(self) -> bool:
        """True for the replica of pool 3, which scores checkpoints beside the training.

        Raises:
            ClusterError: this replica is another one of that pool.
        """
        if self.name.startswith(EVALUATORS) and self.name != f"{EVALUATORS}-0":
            raise ClusterError(f"{self.name}: one evaluator scores all checkpoints; set replicaCount of pool 3 to 1")
        return self.name.startswith(EVALUATORS)

    @property
    def rank(self) -> int:
        """Position of this replica among those that train; 0 is the chief.

        Raises:
            ClusterError: this replica is a reducer or an evaluator.
        """
        for rank, node in enumerate(self.nodes):
            if node.name == self.name:
                return rank
        raise ClusterError(
            f"{self.name}: only pools 0 and 1 train; give this pool a command of its own"
            " (reducers run Google's image without a command)"
        )


def from_env(environ: Mapping[str, str]) -> Cluster:
    """Read CLUSTER_SPEC, else TF_CONFIG; with neither it is a cluster of one, as under a debugger.

    Raises:
        ClusterError: the variable is there but malformed.
    """
    for key, read in (("CLUSTER_SPEC", _from_cluster_spec), ("TF_CONFIG", _from_tf_config)):
        if environ.get(key):
            try:
                return read(environ[key])
            except RecursionError:
                raise ClusterError(f"{key}: is nested too deeply; {SHAPE}") from None
    return Cluster()


def _from_cluster_spec(text: str) -> Cluster:
    spec = _object("CLUSTER_SPEC", text)
    pools = _pools("CLUSTER_SPEC", spec, {name: name for name in POOLS})
    if len(pools[CHIEF]) != 1:
        raise ClusterError(
            f"CLUSTER_SPEC: cluster.{CHIEF} has {len(pools[CHIEF])} replicas; expected exactly one, the chief"
        )
    return _cluster("CLUSTER_SPEC", pools, *_task("CLUSTER_SPEC", spec, {name: name for name in POOLS}))


def _from_tf_config(text: str) -> Cluster:
    config = _object("TF_CONFIG", text)
    pools = _pools("TF_CONFIG", config, POOL_OF_ROLE)
    if len(pools[CHIEF]) > 1:
        raise ClusterError(
            f"TF_CONFIG: cluster.chief and cluster.master have {len(pools[CHIEF])} replicas; expected at most one,"
            " the chief"
        )
    pool, index, trial = _task("TF_CONFIG", config, POOL_OF_ROLE)
    if pool == EVALUATORS and not pools[EVALUATORS]:
        # The service lists no evaluators in the cluster; one only knows its own index.
        pools[EVALUATORS], index = (Node(f"{EVALUATORS}-{index}", "localhost:0"),), 0
    return _cluster("TF_CONFIG", pools, pool, index, trial)


def _cluster(key: str, pools: dict[str, tuple[Node, ...]], pool: str, index: int, trial: str) -> Cluster:
    if index >= len(pools[pool]):
        raise ClusterError(
            f"{key}: task.index is {index}, but the cluster lists {len(pools[pool])} replicas there;"
            " expected an index into that list"
        )
    nodes = pools[CHIEF] + pools[WORKERS]
    if not nodes:
        raise ClusterError(f"{key}: cluster lists no chief and no worker; expected at least one that trains")
    return Cluster(nodes, pools[pool][index].name, pools[SERVERS], pools[EVALUATORS], trial)


def _object(key: str, text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise ClusterError(f"{key}: not JSON ({error}); {SHAPE}") from None
    if not isinstance(value, dict):
        raise ClusterError(f"{key}: is {_kind(value)}; {SHAPE}")
    return value


def _pools(key: str, spec: dict[str, Any], names: dict[str, str]) -> dict[str, tuple[Node, ...]]:
    cluster = spec.get("cluster")
    if not isinstance(cluster, dict):
        raise ClusterError(
            f'{key}: cluster is {_kind(cluster)}; expected {{"{next(iter(names))}": ["host:2222"], ...}}'
        )
    pools: dict[str, tuple[Node, ...]] = dict.fromkeys(POOLS, ())
    for name in names.keys() & cluster.keys():  # others, which the service may add one day, are no ranks
        addresses = [] if cluster[name] is None else cluster[name]
        pools[names[name]] += _nodes(f"{key}: cluster.{name}", names[name], addresses)
    return pools


def _nodes(place: str, pool: str, addresses: Any) -> tuple[Node, ...]:
    if not isinstance(addresses, list):
        raise ClusterError(f'{place} is {_kind(addresses)}; expected a list such as ["host:2222"]')
    for index, address in enumerate(addresses):
        match = re.fullmatch(r"\S+:([0-9]{1,5})", address) if isinstance(address, str) else None
        if not match or int(match[1]) > 65535:
            raise ClusterError(f'{place}[{index}] is {json.dumps(address)}; expected host:port, as in "host:2222"')
    return tuple(Node(f"{pool}-{index}", address) for index, address in enumerate(addresses))


def _task(key: str, spec: dict[str, Any], names: dict[str, str]) -> tuple[str, int, str]:
    shape = f'expected {{"type": "{next(iter(names))}", "index": 0}}'
    task = spec.get("task")
    if not isinstance(task, dict):
        raise ClusterError(f"{key}: task is {_kind(task)}; {shape}")
    if str(task.get("type")) not in names:
        raise ClusterError(f"{key}: task.type is {json.dumps(task.get('type'))}; expected one of {', '.join(names)}")
    index = task.get("index", 0)
    if isinstance(index, str) and re.fullmatch("[0-9]{1,9}", index):
        index = int(index)
    if not isinstance(index, int) or isinstance(index, bool) or index < 0:
        raise ClusterError(f"{key}: task.index is {json.dumps(index)}; {shape}")
    trial = task.get("trial") or ""
    if not isinstance(trial, str | int) or isinstance(trial, bool):
        raise ClusterError(f'{key}: task.trial is {_kind(trial)}; expected the id of a trial, as in "3"')
    return names[task["type"]], index, str(trial)


def _kind(value: Any) -> str:
    kinds = {dict: "an object", list: "a list", str: "a string", bool: "true or false", type(None): "missing"}
    return kinds.get(type(value), "a number")

"""Reads the training replicas, their order, and this replica's name from CLUSTER_SPEC or TF_CONFIG.

Vertex AI identifies worker pools by their position. Pool 0 contains the chief, pool 1 contains the workers, pool 2
contains reducers or parameter servers, and pool 3 contains evaluators. Only the replicas in pools 0 and 1 train.
Reducers run Google's reducer image. Parameter servers run the trainer's command with a flag that selects the parameter
server strategy. The `RANK` and `WORLD_SIZE` variables are never read, because on Vertex AI they count machines, not
processes.
Source: Vertex AI documentation, "Distributed training", CLUSTER_SPEC and TF_CONFIG, mid-2026.
"""

import contextlib
import ipaddress
import json
import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trainer.vertex.errors import TrainerError

CHIEF, WORKERS, SERVERS, EVALUATORS = POOLS = ("workerpool0", "workerpool1", "workerpool2", "workerpool3")

# Variable -> role -> pool. Older runtimes call the chief "master". Both names refer to the only replica in pool 0.
POOL_OF_ROLE = {
    "CLUSTER_SPEC": dict(zip(POOLS, POOLS, strict=True)),
    "TF_CONFIG": {"chief": CHIEF, "master": CHIEF, "worker": WORKERS, "ps": SERVERS, "evaluator": EVALUATORS},
}
SHAPE = '{"cluster": {...}, "task": {...}}'


class ClusterError(TrainerError):
    """The error for an invalid cluster description.

    The error's text states the invalid key and the expected format.
    """


@dataclass(frozen=True)
class Node:
    """A replica's name, which also appears in the job's logs, and its address in the form `host:port`."""

    name: str
    address: str

    @property
    def is_local(self) -> bool:
        """True if this is a loopback address. In the local Vertex, all replicas share one machine."""
        with contextlib.suppress(OSError, ValueError):  # a machine that hasn't started doesn't have an IP address yet
            return ipaddress.ip_address(socket.getaddrinfo(self.host, None)[0][4][0]).is_loopback
        return False

    @property
    def host(self) -> str:
        return self.address.rpartition(":")[0].strip("[]")

    @property
    def port(self) -> int:
        return int(self.address.rpartition(":")[2])


@dataclass(frozen=True)
class Cluster:
    """The training replicas (chief first), the servers, and the name of this replica. Servers don't have a rank."""

    nodes: tuple[Node, ...] = (Node("workerpool0-0", "localhost:29500"),)
    name: str = "workerpool0-0"
    servers: tuple[Node, ...] = ()  # pool 2: reducers or parameter servers

    @property
    def chief(self) -> Node:
        return self.nodes[0]

    @property
    def is_chief(self) -> bool:
        return self.name == self.chief.name

    def node(self, rank: int, size: int) -> Node:
        """Return the replica that runs the process with this rank. `size` is the total number of training processes."""
        return self.nodes[rank * len(self.nodes) // size]

    def process(self, rank: int, size: int) -> str:
        """Return a name for the process with this rank.

        The name contains the replica's name and, if the replica runs several processes, the local rank.
        """
        each, name = size // len(self.nodes), self.node(rank, size).name
        return name if each <= 1 else f"process {rank % each} of {name}"

    @property
    def trains(self) -> bool:
        return any(node.name == self.name for node in self.nodes)

    @property
    def rank(self) -> int:
        """The position of this replica among the training replicas. The chief has rank 0.

        Raises:
            ClusterError: If this replica doesn't train. For example, reducers and evaluators don't train.
        """
        if not self.trains:
            raise ClusterError(
                f"{self.name}: only pools 0 and 1 train; use the evaluator's command in pool 3. Don't set a command"
                " for reducers, because Google's reducer image has its own command"
            )
        return [node.name for node in self.nodes].index(self.name)


def from_env(environ: Mapping[str, str]) -> Cluster:
    """Read CLUSTER_SPEC or TF_CONFIG. If neither variable is set (as in a debugger), return a cluster of one replica.

    Raises:
        ClusterError: If the variable is set but malformed.
    """
    for key, pool_of in POOL_OF_ROLE.items():
        if environ.get(key):
            try:
                return _cluster(json.loads(environ[key]), pool_of)
            except ClusterError as error:
                fault = str(error)
            except RecursionError:
                fault = f"the text is nested too deeply; expected {SHAPE}"
            except ValueError as error:
                fault = f"the text isn't JSON ({error}); expected {SHAPE}"
            raise ClusterError(f"{key}: {fault}")
    return Cluster()


def _cluster(spec: Any, pool_of: Mapping[str, str]) -> Cluster:
    first = next(iter(pool_of))
    _require("the text", spec, isinstance(spec, dict), SHAPE)
    cluster, task = spec.get("cluster"), spec.get("task")
    _require("cluster", cluster, isinstance(cluster, dict), f'{{"{first}": ["host:2222"], ...}}')
    _require("task", task, isinstance(task, dict), f'{{"type": "{first}", "index": 0}}')
    pools, role, index = _pools(cluster, pool_of), task.get("type"), task.get("index", 0)
    chiefs = len(pools[CHIEF])
    # If TF_CONFIG doesn't list a chief, the first worker is the chief.
    if chiefs > 1 or (chiefs == 0 and (first == CHIEF or not pools[WORKERS])):
        raise ClusterError(f"cluster.{first} has {chiefs} replicas; expected exactly one, the chief")
    _require("task.type", role, str(role) in pool_of, f"one of {', '.join(pool_of)}")
    _require("task.index", index, bool(re.fullmatch("[0-9]{1,9}", str(index))), 'a whole number, as in "index": 0')
    pool = pool_of[role]
    # TF_CONFIG doesn't list evaluators: an evaluator knows only its own index.
    is_listed = int(index) < len(pools[pool]) or (pool == EVALUATORS and not pools[pool])
    _require("task.index", index, is_listed, f"an index into the {len(pools[pool])} replicas of its pool")
    return Cluster(pools[CHIEF] + pools[WORKERS], f"{pool}-{int(index)}", pools[SERVERS])


def _pools(cluster: Mapping[str, Any], pool_of: Mapping[str, str]) -> dict[str, tuple[Node, ...]]:
    """Map each worker pool to its replicas.

    The function ignores keys that aren't pools, because Vertex AI might add keys in the future.
    """
    pools: dict[str, tuple[Node, ...]] = dict.fromkeys(POOLS, ())
    seen = set[str]()
    for role in filter(cluster.__contains__, pool_of):
        pool, addresses = pool_of[role], [] if cluster[role] is None else cluster[role]
        _require(f"cluster.{role}", addresses, isinstance(addresses, list), 'a list such as ["host:2222"]')
        for index, address in enumerate(addresses):
            port = re.fullmatch(r"\S+:([0-9]{1,5})", str(address))
            is_address = port is not None and 0 < int(port[1]) < 2**16
            _require(f"cluster.{role}[{index}]", address, is_address, 'host:port, as in "host:2222"')
            if address in seen:
                raise ClusterError(f"cluster contains {address} twice; expected a different address for each replica")
            seen.add(address)
            pools[pool] += (Node(f"{pool}-{index}", address),)
    return pools


def _require(place: str, value: Any, is_right: bool, shape: str) -> None:
    """If the value isn't valid, raise a ClusterError such as `task.index is -1; expected ...`."""
    if not is_right:
        raise ClusterError(f"{place} is {'missing' if value is None else json.dumps(value)[:80]}; expected {shape}")

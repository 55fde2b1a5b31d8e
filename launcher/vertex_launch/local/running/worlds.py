"""Finds a job's worlds. A world is a group of replicas whose processes were connected to each other.

Training processes keep their connections open, so regular samples find them. After a connection is opened, the launcher
samples more frequently for a while. However, a short-lived connection can begin and end between two samples. Linux
lists a closed connection for one more minute, but without its owners. Therefore, the launcher doesn't know which
replicas used it.
"""

import contextlib
import math
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import psutil

from vertex_launch.errors import listed
from vertex_launch.local.running import connections
from vertex_launch.local.running.connections import Ends, Member
from vertex_launch.local.running.hosts import LOOPBACK, first_ephemeral_port

PAUSE, REGULAR = 0.02, 0.5  # seconds between two samples, after a connection was opened and otherwise
ACCEPT = 0.1  # seconds in which a server accepts a connection, if it isn't busy
SLOWER = 1000  # the pause is at least 1/1000 of the time since the last replica started
LOOKS = 3  # how many samples of all processes are required before a missing connection is conclusive
LOCALHOST = {LOOPBACK, "0.0.0.1"}  # 0.0.0.1 stands for ::1
ALONE = (
    "Training processes in different worlds weren't connected. Unless they exchanged data through files, each"
    " world trained a separate model. To train one model, use a strategy that reads TF_CONFIG, or start the script with"
    " torchrun --nnodes=$(WORLD_SIZE) --node-rank=$(RANK) --master-addr=$(MASTER_ADDR) --master-port=$(MASTER_PORT)"
)
ITSELF = (
    "because all replicas share this machine. On Vertex AI, each replica would wait for itself. Use MASTER_ADDR instead"
)


@dataclass
class Worlds:
    """The processes and connections observed since a job's last replica started."""

    addresses: Mapping[str, str]  # name of each training replica -> IP address
    began: float = field(default_factory=time.monotonic)
    due: float = 0  # the time of the next sample, from time.monotonic
    regular_due: float = 0
    opened: tuple[str, ...] = ()  # the system's counters of opened connections at the last look
    settled: float = 0  # until this time, a process may accept a connection that was counted as opened
    looks: int = 0  # the number of samples of all processes while all these replicas ran
    members: Mapping[Member, psutil.Process] = field(default_factory=dict)  # the processes in the last such sample
    links: dict[Ends, tuple[Member, Member]] = field(default_factory=dict)
    closed: set[Ends] = field(default_factory=set)  # closed connections to an address of these replicas
    parents: dict[Member, Member] = field(default_factory=dict)  # process -> parent process
    workers: set[Member] = field(default_factory=set)  # the processes that torch's agents started
    sizes: dict[str, int] = field(default_factory=dict)  # replica -> number of its workers
    alone: bool = False  # whether an agent created a world of only its own workers

    def look(self, numbers: Mapping[str, int], last: bool = False) -> None:
        """Record the current connections.

        `numbers` maps each running replica's name to the ID of its first process.
        """
        if len(self.addresses) < 2 or not (numbers or last) or not connections.visible():
            self.due = math.inf  # until the next replica starts
            return
        start, spent = time.monotonic(), time.thread_time()
        if (opened := connections.opened()) != self.opened:
            self.opened, self.settled = opened, start + ACCEPT
        if is_regular := last or start >= self.regular_due:
            self.regular_due, self.members = start + REGULAR, connections.processes(numbers)
            self.looks += self.addresses.keys() <= numbers.keys()
            self._look_for_workers()
        if is_regular or start < self.settled:  # a sample takes 5 ms, which would be a quarter of a core
            self._sample()
        self.due = start + max(PAUSE, (start - self.began) / SLOWER, time.thread_time() - spent)

    def _sample(self) -> None:
        found, own = connections.connections(self.members), {*self.addresses.values()}
        self.links |= connections.links(found)
        self.closed |= {ends for ends, owner in found.items() if not owner and own & {host for host, _ in ends}}

    def _look_for_workers(self) -> None:
        for member, process in self.members.items():
            with contextlib.suppress(psutil.Error, KeyError, ValueError):  # it has just ended, or no agent started it
                self.parents[member] = member[0], process.ppid()
                environ = process.environ()
                self.sizes[member[0]] = int(environ["LOCAL_WORLD_SIZE"])  # a variable that only an agent sets
                self.alone |= environ["LOCAL_WORLD_SIZE"] == environ["WORLD_SIZE"]
                self.workers.add(member)

    def notes(self, numbers: Mapping[str, int], succeeded: bool) -> Iterator[str]:
        """Record the connections one last time, and yield sentences about the job's worlds for the end of its log."""
        self.look(numbers, last=True)
        if succeeded and len(self.addresses) > 1:
            yield from self._count()
        for (server, port), clients in self._by_localhost().items():
            yield f"localhost:{port} connected {listed(sorted(clients), 'and')} to {server}, {ITSELF}"

    def _count(self) -> Iterator[str]:
        """Yield a sentence with the numbers of processes and worlds if both are known."""
        worlds, sizes = self._worlds(), {self._size(replica) for replica in self.addresses}
        count = f"{len(self.addresses)} replicas"
        if len(sizes) == 1:  # otherwise, some processes, such as Ray's, don't train
            count = f"{len(self.addresses) * sizes.pop()} processes"
        if len(worlds) == 1:
            yield f"{count}, 1 world"
        elif self.alone or (self.looks >= LOOKS and self.closed <= self.links.keys()):
            yield f"{count}, {len(worlds)} worlds: {'; '.join(listed(world, 'and') for world in worlds)}. {ALONE}"

    def _worlds(self) -> list[tuple[str, ...]]:
        """Return the names of the training replicas, grouped by world."""
        pairs = [{one[0], other[0]} for one, other in self.links.values() if self._trains(one) and self._trains(other)]
        world = {name: {name} for name in {*self.addresses}.union(*pairs)}
        for pair in pairs:
            joined = set[str]().union(*(world[name] for name in pair))
            world.update(dict.fromkeys(joined, joined))
        return sorted({tuple(name for name in self.addresses if name in group) for group in world.values()} - {()})

    def _trains(self, member: Member) -> bool:
        """Return whether a process isn't a torchrun agent.

        Agents are connected to each other even if their workers train separately.
        """
        return member in self.workers or member[0] not in self.sizes

    def _size(self, replica: str) -> int:
        """Return the number of training processes in a replica.

        Don't count processes that only start other processes.
        """
        linked = [(one, other[0]) for one, other in self.links.values() if one[0] == replica]
        found = {one for one, other in linked if other != replica} or {one for one, _ in linked}
        return self.sizes.get(replica) or len(found - {self.parents.get(one) for one in found}) or 1

    def _by_localhost(self) -> dict[tuple[str, int], set[str]]:
        """Return the clients that connected to each replica and port through localhost, excluding ephemeral ports."""
        came = defaultdict[tuple[str, int], set[str]](set)
        for ((own, _), (host, port)), ((client, _), (server, _)) in self.links.items():
            if client != server and {own, host} <= LOCALHOST and port < first_ephemeral_port():
                came[server, port].add(client)
        return {} if LOOPBACK in self.addresses.values() else came

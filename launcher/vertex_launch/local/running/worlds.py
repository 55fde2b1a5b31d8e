"""Worlds of a job: the replicas whose processes were connected to one another.

A training keeps its connections, so a look now and then finds them. A shorter connection may begin and end between two
looks. Linux lists it for another minute, but not its owners, so nobody knows whom it joined.
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

PAUSE, REGULAR = 0.02, 0.5  # seconds between two looks at connections, and at all processes
SLOWER = 1000  # the pause is at least this part of the time since the last replica started
LOOKS = 3  # at all processes, before the absence of a connection counts
LOCALHOST = {LOOPBACK, "0.0.0.1"}  # the latter is the end of ::1
ALONE = (
    "No training process was seen connected to another world. If the worlds train one model, each trained alone. To"
    " train together, start the script with torchrun --nnodes=$(WORLD_SIZE) --node-rank=$(RANK)"
    " --master-addr=$(MASTER_ADDR) --master-port=$(MASTER_PORT), or use a strategy that reads TF_CONFIG"
)
ITSELF = "because all replicas share this machine. On Vertex AI each replica would wait for itself: use MASTER_ADDR"


@dataclass
class Worlds:
    """Processes and connections that were seen of a job since its last replica started."""

    addresses: Mapping[str, str]  # name of each replica that trains -> its IP address
    began: float = field(default_factory=time.monotonic)
    due: float = 0  # the next look, as time.monotonic counts
    regular_due: float = 0
    looks: int = 0  # at all processes, while all these replicas ran
    members: Mapping[Member, psutil.Process] = field(default_factory=dict)  # of the last such look
    links: dict[Ends, tuple[Member, Member]] = field(default_factory=dict)
    closed: set[Ends] = field(default_factory=set)  # connections to an address of these replicas
    parents: dict[Member, Member] = field(default_factory=dict)  # process -> the one that has started it
    workers: set[Member] = field(default_factory=set)  # processes that torch's agents started
    sizes: dict[str, int] = field(default_factory=dict)  # replica -> count of its workers
    alone: bool = False  # whether an agent made a world of its own workers

    def look(self, numbers: Mapping[str, int], last: bool = False) -> None:
        """Take in what is connected now; `numbers` are those of the first processes of running replicas."""
        if len(self.addresses) < 2 or not (numbers or last) or not connections.visible():
            self.due = math.inf  # until the next replica starts
            return
        start, spent = time.monotonic(), time.thread_time()
        if last or start >= self.regular_due:
            self.regular_due, self.members = start + REGULAR, connections.processes(numbers)
            self.looks += self.addresses.keys() <= numbers.keys()
            self._look_for_workers()
        found, own = connections.connections(self.members), {*self.addresses.values()}
        self.links |= connections.links(found)
        self.closed |= {ends for ends, owner in found.items() if not owner and own & {host for host, _ in ends}}
        self.due = start + max(PAUSE, (start - self.began) / SLOWER, time.thread_time() - spent)

    def _look_for_workers(self) -> None:
        for member, process in self.members.items():
            with contextlib.suppress(psutil.Error, KeyError, ValueError):  # it has just ended; no agent started it
                self.parents[member] = member[0], process.ppid()
                environ = process.environ()
                self.sizes[member[0]] = int(environ["LOCAL_WORLD_SIZE"])  # which only an agent sets
                self.alone |= environ["LOCAL_WORLD_SIZE"] == environ["WORLD_SIZE"]
                self.workers.add(member)

    def notes(self, numbers: Mapping[str, int], succeeded: bool) -> Iterator[str]:
        """Look for the last time, and yield sentences for the end of the job."""
        self.look(numbers, last=True)
        if succeeded and len(self.addresses) > 1:
            yield from self._count()
        for (server, port), clients in self._by_localhost().items():
            yield f"localhost:{port} led {listed(sorted(clients), 'and')} to {server}, {ITSELF}"

    def _count(self) -> Iterator[str]:
        """Count processes and worlds, if they are known."""
        worlds, sizes = self._worlds(), {self._size(replica) for replica in self.addresses}
        count = f"{len(self.addresses)} replicas"
        if len(sizes) == 1:  # else some processes don't train, as those of Ray
            count = f"{len(self.addresses) * sizes.pop()} processes"
        if len(worlds) == 1:
            yield f"{count}, 1 world"
        elif self.alone or (self.looks >= LOOKS and self.closed <= self.links.keys()):
            yield f"{count}, {len(worlds)} worlds: {'; '.join(listed(world, 'and') for world in worlds)}. {ALONE}"

    def _worlds(self) -> list[tuple[str, ...]]:
        """Return the replicas that train, those of each world together."""
        pairs = [{one[0], other[0]} for one, other in self.links.values() if self._trains(one) and self._trains(other)]
        world = {name: {name} for name in {*self.addresses}.union(*pairs)}
        for pair in pairs:
            joined = set[str]().union(*(world[name] for name in pair))
            world.update(dict.fromkeys(joined, joined))
        return sorted({tuple(name for name in self.addresses if name in group) for group in world.values()} - {()})

    def _trains(self, member: Member) -> bool:
        """Whether a process is no agent: agents are also connected if their workers train alone."""
        return member in self.workers or member[0] not in self.sizes

    def _size(self, replica: str) -> int:
        """Count the processes of a replica that train: of a connected process and its parent, the parent started it."""
        linked = [(one, other[0]) for one, other in self.links.values() if one[0] == replica]
        found = {one for one, other in linked if other != replica} or {one for one, _ in linked}
        return self.sizes.get(replica) or len(found - {self.parents.get(one) for one in found}) or 1

    def _by_localhost(self) -> dict[tuple[str, int], set[str]]:
        """Return who came by localhost to which replica and port, unless the system has chosen the port."""
        came = defaultdict[tuple[str, int], set[str]](set)
        for ((own, _), (host, port)), ((client, _), (server, _)) in self.links.items():
            if client != server and {own, host} <= LOCALHOST and port < first_ephemeral_port():
                came[server, port].add(client)
        return {} if LOOPBACK in self.addresses.values() else came

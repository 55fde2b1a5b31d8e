"""The machines that replicas take themselves for: host names, addresses and free ports, all of this machine."""

import contextlib
import functools
import hashlib
import itertools
import random
import socket
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from ipaddress import IPv4Address
from pathlib import Path
from types import MappingProxyType

from vertex_launch.job.spec import Job
from vertex_launch.job.state_dir import private, private_file
from vertex_launch.local.google import METADATA

LOOPBACK, LOOPBACK_NETWORK = "127.0.0.1", "127.0.0.0/8"
FIRST_OWN = IPv4Address("127.1.0.1")  # Linux answers at all of 127.0.0.0/8
NETWORKS = 2**15  # of 256 addresses each, from there on
SYSTEM_HOSTS = Path("/etc/hosts")
HTTP_PROXIES = frozenset(("http_proxy", "https_proxy", "all_proxy"))

LOWEST_PORT = 20_000  # Ray's workers take those from 10,002 to 19,999
DEFAULT_EPHEMERAL_PORT = 32_768
PORTS_TRIED = 10_000


@dataclass(frozen=True)
class Host:
    """One machine of a job, as the others see it; its port is the only one that CLUSTER_SPEC names."""

    name: str
    ip: str
    port: int

    @property
    def address(self) -> str:
        return f"{self.name}:{self.port}"

    @property
    def env(self) -> dict[str, str]:
        """The variable that every container has; none where replicas have no names."""
        return {} if self.name == self.ip else {"HOSTNAME": self.name}


Hosts = Mapping[tuple[int, int], Host]  # by pool and index


def of_job(job: Job, job_id: str, named: bool) -> Hosts:
    """Return the host of each pool and index; without names they share one address, and have a port each.

    A name has the service's form: cmle-training-workerpool0-7bf8fe24d6-0. Source: Vertex AI, "Distributed training".
    """
    places = [(pool.index, index) for pool in job.pools for index in range(pool.replica_count)]
    ports = free_ports(len(places))
    if not named:
        return {place: Host(LOOPBACK, LOOPBACK, port) for place, port in zip(places, ports, strict=True)}
    suffix = hashlib.sha256(job_id.encode()).hexdigest()[:10]
    first = FIRST_OWN + random.randrange(NETWORKS) * 256
    return {
        (pool, index): Host(f"cmle-training-workerpool{pool}-{suffix}-{index}", str(first + number), ports[number])
        for number, (pool, index) in enumerate(places)
    }


def write(file: Path, hosts: Iterable[Host], others: Mapping[str, str] = MappingProxyType({})) -> Path:
    """Write what replicas see as /etc/hosts, this machine's with a line for each host and each other name's address;
    returns the file.
    """
    own = f"{LOOPBACK} localhost"
    with contextlib.suppress(OSError, UnicodeDecodeError):
        own = SYSTEM_HOSTS.read_text().rstrip("\n")
    private(file.parent)
    with open(file, "w", opener=private_file) as text:
        addresses = {host.name: host.ip for host in hosts} | {**others}
        text.write("\n".join((own, *(f"{address} {name}" for name, address in addresses.items()), "")))
    return file


def off_the_proxy(environ: Mapping[str, str], hosts: Iterable[Host]) -> dict[str, str]:
    """Return variables that keep connections between replicas off the shell's proxy; none if it has no proxy."""
    if not HTTP_PROXIES & {name.lower() for name in environ}:
        return {}
    exceptions = (environ.get("no_proxy") or environ.get("NO_PROXY", ""), "localhost", LOOPBACK, LOOPBACK_NETWORK)
    value = ",".join(filter(None, (*exceptions, *METADATA, *(host.name for host in hosts))))
    return {"no_proxy": value, "NO_PROXY": value}


def free_addresses(count: int) -> list[str]:
    """Return distinct loopback addresses, host:port, at which nobody listens now."""
    return [f"{LOOPBACK}:{port}" for port in free_ports(count)]


def free_ports(count: int) -> list[int]:
    """Return distinct ports at which nobody listens now, at any address of this machine.

    A port is reused only after thousands of others, because a new job's replicas may not be listening yet.
    """
    ports: list[int] = []
    for port in itertools.islice(_ports(), PORTS_TRIED):
        if len(ports) == count:
            return ports
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("", port))  # some programs listen at their host's address, others at all
            ports.append(port)
    raise OSError(f"this machine has no {count} free ports from {LOWEST_PORT} on; end what uses them")


@functools.cache
def _ports() -> Iterator[int]:
    """Yield ports for replicas, shuffled, in an endless cycle.

    The system gives none of them to an outgoing connection: a replica that restarts needs its own port again.
    """
    return itertools.cycle(random.sample(range(LOWEST_PORT, first_ephemeral_port()), k=PORTS_TRIED))


def first_ephemeral_port() -> int:
    """Return the lowest port of outgoing connections. Source: ip(7), ip_local_port_range."""
    first = DEFAULT_EPHEMERAL_PORT
    with contextlib.suppress(OSError):  # only Linux has it
        first = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    return max(first, LOWEST_PORT + PORTS_TRIED)  # some systems begin so low that nothing is left below

"""Simulates a separate machine for each replica, with a hostname, an IP address, and free ports."""

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
FIRST_OWN = IPv4Address("127.1.0.1")  # on Linux, every address in 127.0.0.0/8 belongs to this machine
NETWORKS = 2**15  # the number of networks of 256 addresses each that start at FIRST_OWN
SYSTEM_HOSTS = Path("/etc/hosts")
HTTP_PROXIES = frozenset(("http_proxy", "https_proxy", "all_proxy"))

LOWEST_PORT = 20_000  # Ray's workers use the ports from 10,002 to 19,999
DEFAULT_EPHEMERAL_PORT = 32_768
PORTS_TRIED = 10_000


@dataclass(frozen=True)
class Host:
    """The hostname, IP address, and port of one machine in a job. CLUSTER_SPEC lists only this port."""

    name: str
    ip: str
    port: int

    @property
    def address(self) -> str:
        return f"{self.name}:{self.port}"

    @property
    def env(self) -> dict[str, str]:
        """The HOSTNAME environment variable, which is set in every container.

        If the replica doesn't have a hostname, the dictionary is empty.
        """
        return {} if self.name == self.ip else {"HOSTNAME": self.name}


Hosts = Mapping[tuple[int, int], Host]  # by pool and index


def of_job(job: Job, job_id: str, named: bool) -> Hosts:
    """Return the host of each replica, keyed by pool index and replica index.

    Unnamed hosts share one IP address but have different ports. Example of a name:
    cmle-training-workerpool0-7bf8fe24d6-0.
    Source: Vertex AI, "Distributed training".
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
    """Write the /etc/hosts file for the replicas, and return its path.

    The file contains the lines of this machine's /etc/hosts and a line for each name in `hosts` and `others`.
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
    """Return environment variables that make connections between replicas bypass the shell's HTTP proxy.

    Return an empty dictionary if the shell doesn't set a proxy.
    """
    if not HTTP_PROXIES & {name.lower() for name in environ}:
        return {}
    exceptions = (environ.get("no_proxy") or environ.get("NO_PROXY", ""), "localhost", LOOPBACK, LOOPBACK_NETWORK)
    value = ",".join(filter(None, (*exceptions, *METADATA, *(host.name for host in hosts))))
    return {"no_proxy": value, "NO_PROXY": value}


def free_addresses(count: int) -> list[str]:
    """Return distinct loopback addresses, in the form host:port, on which no program is listening."""
    return [f"{LOOPBACK}:{port}" for port in free_ports(count)]


def free_ports(count: int) -> list[int]:
    """Return distinct ports that have no listener on any address of this machine.

    A port is returned again only after thousands of others, because a job's replicas might not be listening on their
    ports yet.
    """
    ports: list[int] = []
    for port in itertools.islice(_ports(), PORTS_TRIED):
        if len(ports) == count:
            return ports
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("", port))  # some programs listen on one address of the host, others on all addresses
            ports.append(port)
    raise OSError(
        f"this machine has fewer than {count} free ports above {LOWEST_PORT}; stop other programs that use ports"
    )


@functools.cache
def _ports() -> Iterator[int]:
    """Return an iterator that endlessly repeats the replica ports in the same random order.

    The system never uses these ports for outgoing connections, so a restarted replica can use its port again.
    """
    return itertools.cycle(random.sample(range(LOWEST_PORT, first_ephemeral_port()), k=PORTS_TRIED))


def first_ephemeral_port() -> int:
    """Return the lowest port number that the system uses for outgoing connections.

    Source: ip(7), ip_local_port_range.
    """
    first = DEFAULT_EPHEMERAL_PORT
    with contextlib.suppress(OSError):  # only Linux has this file
        first = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    return max(first, LOWEST_PORT + PORTS_TRIED)  # some systems leave too few ports below this range

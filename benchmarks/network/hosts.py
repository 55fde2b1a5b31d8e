"""Hosts out of one machine: network namespaces at one switch, each with a network card of limited rate.

All lies in namespaces that begin and end with one process, see `ways`. The kernel therefore cleans up, whatever happens
to us; the machine's own network and files never know.
"""

import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

TOOLS = ("setpriv", "unshare", "nsenter", "mount", "ip", "tc")
# Whoever ends us ends all: `setpriv` has `unshare` end with us, which ends its child, the first of a PID namespace.
WITH_US = ("setpriv", "--pdeathsig", "KILL", "unshare", "--net", "--mount", "--pid", "--fork", "--kill-child")
AS_ROOT, AS_USER = (*WITH_US, "--"), (*WITH_US, "--user", "--map-root-user", "--")

CARD = "eth0"  # its name inside every host
MTU = 1500  # bytes; what a new network card has in Linux
# A frame of 64 KiB, which the card is to cut into packets, must fit in the burst with its headers; a larger burst would
# be data that no limit holds back. The queue is deep: what fills it is bounded by those who send, and nothing is lost.
BURST, QUEUE = 80_000, 4_000_000  # bytes

# What must work for `connect` to work: in one go, as its order is that of likelihood to fail.
PROBE = f"""
mount -t tmpfs run /run && ip netns add probe && ip link add switch type bridge &&
ip link add probe type veth peer name {CARD} netns probe &&
tc qdisc add dev probe root tbf rate 1mbit burst {BURST} limit {QUEUE} && nsenter --net=/run/netns/probe true
"""


@dataclass(frozen=True)
class Host:
    """A place to run programs in, with a network card and an address."""

    name: str
    address: str


def searched(path: str) -> str:
    """PATH with the folders of `ip` and `tc`, which it often lacks for plain users."""
    return f"{path}:/usr/sbin:/sbin"


def missing(path: str) -> str:
    """Which programs are not in this PATH, as a sentence with the cure; empty if all are."""
    absent = [tool for tool in TOOLS if not shutil.which(tool, path=path)]
    if not absent:
        return ""
    return f"hosts cannot be emulated without {', '.join(absent)}; install iproute2 and util-linux, on Linux"


def way(environment: Mapping[str, str]) -> tuple[str, ...]:
    """The start of a command whose process may connect hosts; raises OSError with the reason if nothing permits it."""
    if sentence := missing(environment["PATH"]):
        raise OSError(sentence)
    said = []
    for start in (AS_ROOT, AS_USER):
        done = subprocess.run([*start, "sh", "-c", PROBE], env=environment, capture_output=True, text=True, timeout=60)
        if done.returncode == 0:
            return start
        said.append(done.stderr.strip().replace("\n", ", ") or f"exit status {done.returncode}")
    raise OSError(
        "hosts cannot be emulated here; be root with CAP_NET_ADMIN and CAP_SYS_ADMIN, or have the kernel permit user "
        f"namespaces, and have its modules veth, bridge and sch_tbf (as root: {said[0]}; as a user: {said[1]})"
    )


def connect(count: int, mbit: int) -> list[Host]:
    """Make hosts at one switch; each sends and receives at most so many Mbit/s, at once, with headers counted.

    To be called once, by a process that began in a `way`.
    """
    hosts = [Host(f"host{number}", f"10.0.0.{number + 1}") for number in range(count)]
    run(["mount", "-t", "tmpfs", "run", "/run"])  # `ip netns` keeps its names there, now for us alone
    for host in hosts:
        run(["ip", "netns", "add", host.name])
    links = [f"link add {host.name} mtu {MTU} type veth peer {CARD} mtu {MTU} netns {host.name}" for host in hosts]
    plugs = [f"link set {host.name} master switch up" for host in hosts]
    run(["ip", "-batch", "-"], "link add switch up type bridge", *links, *plugs)
    limit = f"root tbf rate {mbit}mbit burst {BURST} limit {QUEUE}"
    run(["tc", "-batch", "-"], *(f"qdisc add dev {host.name} {limit}" for host in hosts))  # what each receives
    for host in hosts:
        run(inside(host, "tc", "-batch", "-"), f"qdisc add dev {CARD} {limit}")  # what it sends
        address = f"address add {host.address}/24 dev {CARD}"
        route = f"route replace 10.0.0.0/24 dev {CARD} congctl cubic"
        run(inside(host, "ip", "-batch", "-"), "link set lo up", address, f"link set {CARD} up", route)
        run(inside(host, "tee", "/proc/sys/net/ipv4/tcp_slow_start_after_idle"), "0")
    return hosts


def inside(host: Host, *command: str) -> list[str]:
    """The command that runs this one in the host."""
    return ["nsenter", f"--net=/run/netns/{host.name}", *command]


def run(command: Sequence[str], *lines: str) -> None:
    """Runs a command to its end, with these lines to read."""
    subprocess.run(command, input="\n".join(lines), text=True, stdout=subprocess.DEVNULL, check=True, timeout=60)


def sent() -> dict[str, int]:
    """Bytes that each host has sent so far, by name: what the switch has received from it.

    A frame that the card is to cut into packets counts with one header, so this is close to the data alone.
    """
    _, _, *lines = Path("/proc/net/dev").read_text().splitlines()
    return {name.strip(): int(numbers.split()[0]) for name, numbers in (line.split(":") for line in lines)}

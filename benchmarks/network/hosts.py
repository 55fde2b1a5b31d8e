"""Emulate hosts on one machine as network namespaces at one switch, each with a rate-limited network card.

All hosts are in namespaces that exist only as long as one process (see `way`). When this process exits, the kernel
deletes the namespaces. The machine's own network and files don't change.
"""

import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

TOOLS = ("setpriv", "unshare", "nsenter", "mount", "ip", "tc")
# If this process exits, `setpriv` kills `unshare`, which kills its child, the first process of a PID namespace.
WITH_US = ("setpriv", "--pdeathsig", "KILL", "unshare", "--net", "--mount", "--pid", "--fork", "--kill-child")
AS_ROOT, AS_USER = (*WITH_US, "--"), (*WITH_US, "--user", "--map-root-user", "--")

CARD = "eth0"  # its name inside every host
MTU = 1500  # bytes; what a new network card has in Linux
# A frame of 64 KiB, which the card splits into packets, must fit in the burst with its headers. A larger burst would
# exceed the rate limit. The queue is deep, so no packet is lost; the senders limit how much data it contains.
BURST, QUEUE = 80_000, 4_000_000  # bytes

# The commands that `connect` needs; the most likely failures come first.
PROBE = f"""
mount -t tmpfs run /run && ip netns add probe && ip link add switch type bridge &&
ip link add probe type veth peer name {CARD} netns probe &&
tc qdisc add dev probe root tbf rate 1mbit burst {BURST} limit {QUEUE} && nsenter --net=/run/netns/probe true
"""


@dataclass(frozen=True)
class Host:
    """An emulated host with a network card and an IP address."""

    name: str
    address: str


def searched(path: str) -> str:
    """Return PATH with the folders of `ip` and `tc`, because a user's PATH often doesn't contain these folders."""
    return f"{path}:/usr/sbin:/sbin"


def missing(path: str) -> str:
    """Return a sentence that names the programs that this PATH doesn't contain. Return "" if no program is missing."""
    absent = [tool for tool in TOOLS if not shutil.which(tool, path=path)]
    if not absent:
        return ""
    return f"hosts can't be emulated without {', '.join(absent)}; on Linux, install iproute2 and util-linux"


def way(environment: Mapping[str, str]) -> tuple[str, ...]:
    """Return the beginning of a command that may connect hosts. Raises OSError with the cause if none is permitted."""
    if sentence := missing(environment["PATH"]):
        raise OSError(sentence)
    said = []
    for start in (AS_ROOT, AS_USER):
        done = subprocess.run([*start, "sh", "-c", PROBE], env=environment, capture_output=True, text=True, timeout=60)
        if done.returncode == 0:
            return start
        said.append(done.stderr.strip().replace("\n", ", ") or f"exit status {done.returncode}")
    raise OSError(
        "hosts can't be emulated on this machine; run as root with CAP_NET_ADMIN and CAP_SYS_ADMIN, or enable user "
        f"namespaces, and load the modules veth, bridge and sch_tbf (as root: {said[0]}; as a user: {said[1]})"
    )


def connect(count: int, mbit: int) -> list[Host]:
    """Create hosts at one switch. `mbit` limits the rate in each direction, including headers.

    Call `connect` only once, in a process that was started with the command that `way` returns.
    """
    hosts = [Host(f"host{number}", f"10.0.0.{number + 1}") for number in range(count)]
    run(["mount", "-t", "tmpfs", "run", "/run"])  # `ip netns` stores its names in /run, which is now private
    for host in hosts:
        run(["ip", "netns", "add", host.name])
    links = [f"link add {host.name} mtu {MTU} type veth peer {CARD} mtu {MTU} netns {host.name}" for host in hosts]
    plugs = [f"link set {host.name} master switch up" for host in hosts]
    run(["ip", "-batch", "-"], "link add switch up type bridge", *links, *plugs)
    limit = f"root tbf rate {mbit}mbit burst {BURST} limit {QUEUE}"
    run(["tc", "-batch", "-"], *(f"qdisc add dev {host.name} {limit}" for host in hosts))  # limits received data
    for host in hosts:
        run(inside(host, "tc", "-batch", "-"), f"qdisc add dev {CARD} {limit}")  # limits sent data
        address = f"address add {host.address}/24 dev {CARD}"
        route = f"route replace 10.0.0.0/24 dev {CARD} congctl cubic"
        run(inside(host, "ip", "-batch", "-"), "link set lo up", address, f"link set {CARD} up", route)
        run(inside(host, "tee", "/proc/sys/net/ipv4/tcp_slow_start_after_idle"), "0")
    return hosts


def inside(host: Host, *command: str) -> list[str]:
    """Return the command that runs this command in the host."""
    return ["nsenter", f"--net=/run/netns/{host.name}", *command]


def run(command: Sequence[str], *lines: str) -> None:
    """Run a command with these lines as input."""
    subprocess.run(command, input="\n".join(lines), text=True, stdout=subprocess.DEVNULL, check=True, timeout=60)


def sent() -> dict[str, int]:
    """Return the number of bytes that each host has sent, keyed by name. The switch counts these bytes.

    The switch counts only one header for a frame that the card splits into packets. Therefore the number of sent
    bytes is close to the size of the data.
    """
    _, _, *lines = Path("/proc/net/dev").read_text().splitlines()
    return {name.strip(): int(numbers.split()[0]) for name, numbers in (line.split(":") for line in lines)}

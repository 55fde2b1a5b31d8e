"""What this machine provides in place of the cloud: addresses, buckets, GPUs and the image's environment."""

import contextlib
import functools
import itertools
import os
import random
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

# The service sets these; a value that happens to be in the shell must not leak into a replica.
CONTRACT = ("CLUSTER_SPEC", "TF_CONFIG", "RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
CONTRACT_PREFIXES = ("AIP_", "CLOUD_ML_")

LOOPBACK = "127.0.0.1"
LOWEST_PORT = 10_000
DEFAULT_EPHEMERAL_PORT = 32_768
PORTS_TRIED = 10_000


def free_addresses(count: int) -> list[str]:
    """Distinct loopback addresses, host:port, at which nobody listens just now.

    None is given twice before some thousand others: the replicas of a job that has just started do not listen yet.
    """
    found: list[str] = []
    for port in itertools.islice(_ports(), PORTS_TRIED):
        if len(found) == count:
            return found
        with socket.socket() as one, contextlib.suppress(OSError):
            one.bind((LOOPBACK, port))
            found.append(f"{LOOPBACK}:{port}")
    raise OSError(f"this machine has no {count} free ports from {LOWEST_PORT} on; end what uses them")


@functools.cache
def _ports() -> Iterator[int]:
    """What replicas may listen at, in a random order, again and again.

    Not the ports that the system gives to outgoing connections: a replica that restarts needs its own again.
    """
    return itertools.cycle(random.sample(range(LOWEST_PORT, first_ephemeral_port()), k=PORTS_TRIED))


def first_ephemeral_port() -> int:
    """Where the ports of outgoing connections begin. Source: ip(7), ip_local_port_range."""
    first = DEFAULT_EPHEMERAL_PORT
    with contextlib.suppress(OSError):  # only Linux has it
        first = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    return max(first, LOWEST_PORT + PORTS_TRIED)  # some systems begin so low that nothing is left below


def image_environment(environ: Mapping[str, str], buckets: Path) -> dict[str, str]:
    """The shell's environment as an image's: this Python first, nothing of Vertex but the bucket mount."""
    kept = {
        name: value
        for name, value in environ.items()
        if name not in CONTRACT and not name.startswith(CONTRACT_PREFIXES)
    }
    path = f"{Path(sys.executable).parent}{os.pathsep}{environ.get('PATH', os.defpath)}"
    return kept | {"PATH": path, "GCS_MOUNT": str(buckets), "PYTHONUNBUFFERED": "1"}


def shares(gpus: Sequence[str], count: int) -> list[dict[str, str]]:
    """Environment of each of `count` replicas: an equal share of the cores, and of the GPUs if all get one."""
    threads = str(max((os.cpu_count() or 1) // count, 1))
    each = len(gpus) // count
    return [
        {"OMP_NUM_THREADS": threads, "CUDA_VISIBLE_DEVICES": ",".join(gpus[i * each : (i + 1) * each])}
        for i in range(count)
    ]


def visible_gpus(environ: Mapping[str, str]) -> list[str]:
    """Indices of the NVIDIA GPUs that this shell may use."""
    if "CUDA_VISIBLE_DEVICES" in environ:
        return [gpu for gpu in environ["CUDA_VISIBLE_DEVICES"].split(",") if gpu]
    return _installed_gpus()


@functools.cache
def _installed_gpus() -> list[str]:
    """Asked once: nvidia-smi takes up to a second, and the service places a job in milliseconds."""
    try:
        listing = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return []
    return [str(i) for i, line in enumerate(listing.stdout.splitlines()) if line.startswith("GPU ")]

"""What this machine provides in place of the cloud: addresses, buckets, GPUs and the image's environment."""

import contextlib
import os
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

# The service sets these; a value that happens to be in the shell must not leak into a replica.
CONTRACT = ("CLUSTER_SPEC", "TF_CONFIG", "RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
CONTRACT_PREFIXES = ("AIP_", "CLOUD_ML_")


def free_addresses(count: int) -> list[str]:
    """Distinct loopback addresses, host:port, at which nobody listens just now."""
    with contextlib.ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [f"127.0.0.1:{one.getsockname()[1]}" for one in sockets]


def bucket_path(address: str, buckets: Path) -> Path:
    """gs://BUCKET/FOLDER -> the folder that stands for it here."""
    return buckets / address.removeprefix("gs://")


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
    try:
        listing = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return []
    return [str(i) for i, line in enumerate(listing.stdout.splitlines()) if line.startswith("GPU ")]

"""Compares the machine's GPU driver version with the one that the image's CUDA version requires."""

import contextlib
import re
from importlib import metadata
from pathlib import Path

VERSION = Path("/proc/driver/nvidia/version")  # written by the kernel module, and readable in a container
MODULE = re.compile(r"Kernel Module(?: for \S+)?\s+(\d+(?:\.\d+)+)")
# Major CUDA version -> the oldest driver that works with this version.
# Source: NVIDIA, CUDA Toolkit release notes, "Minimum required driver version for CUDA minor version compatibility".
NEEDED = {"11": 450, "12": 525, "13": 580}


def installed(version: Path = VERSION) -> str:
    """Return the GPU driver's version, such as 580.65.06. If no driver is installed, return an empty string."""
    match = MODULE.search(version.read_text(encoding="utf-8")) if version.exists() else None
    return match[1] if match else ""


def versions(cuda: str, nccl: str) -> str:
    """Format the versions as `driver 580.65.06, CUDA 13.0, NCCL 2.29.3`."""
    return f"driver {installed() or 'unknown'}, CUDA {cuda}, NCCL {nccl}"


def wheel(name: str) -> str:
    """Return the version of an NVIDIA wheel, whose name can end with a CUDA version.

    If the wheel isn't installed, return an empty string.
    """
    for suffix in ("", *(f"-cu{cuda}" for cuda in NEEDED)):
        with contextlib.suppress(metadata.PackageNotFoundError):
            return metadata.version(f"{name}{suffix}")
    return ""


def is_too_old(driver: str, cuda: str) -> bool:
    return int(driver.partition(".")[0]) < NEEDED.get(cuda.partition(".")[0], 0)


def why_no_gpu(cuda: str, driver: str) -> str:
    """Return a sentence that explains why a GPU image can't find a GPU, and how to fix the problem.

    Args:
        cuda: the image's CUDA version, such as 13.0.
        driver: the driver version that `installed` returns.
    """
    needed = NEEDED.get(cuda.partition(".")[0], 0)
    needs = f", which requires driver {needed} or newer" if needed else ""
    if not driver:
        cure = "this machine doesn't have a driver; check that the job's machineSpec has an acceleratorType"
    elif is_too_old(driver, cuda):
        cure = f"the driver is {driver}; use an image with an older CUDA version, or machines with a newer driver"
    else:
        cure = f"the driver {driver} is new enough; check whether CUDA_VISIBLE_DEVICES hides the GPUs"
    return f"no usable GPU, but this image is made for GPUs (CUDA {cuda}{needs}): {cure}"

"""The GPU driver of this machine, and the one that the image's CUDA needs: the image cannot bring it."""

import contextlib
import re
from importlib import metadata
from pathlib import Path

VERSION = Path("/proc/driver/nvidia/version")  # as the kernel's module tells it, in a container, too
MODULE = re.compile(r"Kernel Module(?: for \S+)?\s+(\d+(?:\.\d+)+)")
# CUDA -> the first driver it works with, and with any newer one.
# Source: NVIDIA, CUDA Toolkit release notes, "Minimum required driver version for CUDA minor version compatibility".
NEEDED = {"11": 450, "12": 525, "13": 580}


def installed(version: Path = VERSION) -> str:
    """Version such as 580.65.06; "" where there is no driver."""
    match = MODULE.search(version.read_text(encoding="utf-8")) if version.exists() else None
    return match[1] if match else ""


def versions(cuda: str, nccl: str) -> str:
    """`driver 580.65.06, CUDA 13.0, NCCL 2.29.3`"""
    return f"driver {installed() or 'unknown'}, CUDA {cuda}, NCCL {nccl}"


def wheel(name: str) -> str:
    """Version of a wheel of NVIDIA's, whose name may end with its CUDA; "" where none is installed."""
    for suffix in ("", *(f"-cu{cuda}" for cuda in NEEDED)):
        with contextlib.suppress(metadata.PackageNotFoundError):
            return metadata.version(f"{name}{suffix}")
    return ""


def is_too_old(driver: str, cuda: str) -> bool:
    return int(driver.partition(".")[0]) < NEEDED.get(cuda.partition(".")[0], 0)


def why_no_gpu(cuda: str, driver: str) -> str:
    """Return why an image made for GPUs has none: a sentence with its cure.

    Args:
        cuda: version of the image's CUDA, such as 13.0.
        driver: as `installed` returns it.
    """
    needed = NEEDED.get(cuda.partition(".")[0], 0)
    needs = f", which needs driver {needed} or newer" if needed else ""
    if not driver:
        cure = "this machine has no driver; is there an acceleratorType in the job's machineSpec?"
    elif is_too_old(driver, cuda):
        cure = f"the driver is {driver}; build the image with an older CUDA, or take machines with a newer driver"
    else:
        cure = f"the driver {driver} is new enough; CUDA_VISIBLE_DEVICES may hide the GPUs"
    return f"no usable GPU, but this image is made for GPUs (CUDA {cuda}{needs}): {cure}"

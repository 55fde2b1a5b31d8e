"""Lease of an output folder: who writes there now. A project's trainer/vertex/lease.py takes it, and has its format.

Other trainers take none, so nobody is seen to use their folders.
"""

import contextlib
import os
import platform
import time
from pathlib import Path
from typing import IO

from vertex_launch import jsons
from vertex_launch.errors import FaultError, Finding, Findings
from vertex_launch.printable import printable
from vertex_launch.regular_file import locked_elsewhere, open_regular, read_regular
from vertex_launch.spec import OUTPUT

FOLDER = "checkpoints/lease/"  # in the output folder
CURE = "choose another output folder, or wait until it ends"
EXPIRE_SECONDS, LOOK_SECONDS = 60.0, 0.5
LARGEST = 2**12  # bytes of a claim
BOOT = Path("/proc/sys/kernel/random/boot_id")
NONE = (OSError, ValueError, LookupError, TypeError)  # raised by a file that is no claim, or is gone


def require_free(output: Path | None, file: Path | str, below: str = "", seconds: float = EXPIRE_SECONDS) -> None:
    """Raise FaultError if a job writes to the output folder; `below`, `seconds`: as of `in_use`."""
    if output and (findings := [*in_use(output, below, seconds)]):
        raise FaultError(*findings, file=file)


def in_use(output: Path, below: str = "", seconds: float = 0) -> Findings:
    """Yield a finding for each job that writes to the output folder.

    Args:
        below: a pattern of folders in it that count in its place, such as `**/` for all, and itself.
        seconds: to wait for a renewal by a job of another machine, without which it counts as ended.
    """
    for file in sorted(output.glob(f"{below}{FOLDER}*.json")):
        with contextlib.suppress(*NONE):
            claim = read_regular(file, LARGEST)
            if _lives(file, jsons.loads(claim)["lock"], seconds):
                folder, renewed = file.parents[1], _renewed(file) or file
                shown = folder.relative_to(Path.cwd()) if folder.is_relative_to(Path.cwd()) else folder
                yield Finding(OUTPUT, sentence(str(shown), claim, time.time() - renewed.stat().st_mtime), CURE)


def sentence(folder: str, claim: bytes, seconds: float) -> str:
    """`.vertex/gcs/b/run/checkpoints is in use by job 17 on HOST since 2026-11-27 08:31 UTC (renewed 12 s ago)`"""
    job, host, since = (printable(str(jsons.loads(claim)[key])) for key in ("job", "host", "since"))
    since = since[:16].replace("T", " ")
    return f"{folder} is in use by job {job} on {host} since {since} UTC (renewed {max(seconds, 0):.0f} s ago)"


def _lives(file: Path, lock: str, seconds: float) -> bool:
    with open_regular(file) as stream:
        if lock == machine(stream):
            return locked_elsewhere(stream)
    first, end = _renewed(file), time.monotonic() + seconds
    while file.exists() and time.monotonic() < end:
        time.sleep(LOOK_SECONDS)
        if _renewed(file) not in (first, None):
            return True
    return False


def machine(stream: IO[bytes]) -> str:
    """Name the one machine and mount in which a lock on this file counts."""
    return f"{BOOT.read_text().strip() if BOOT.exists() else platform.node()}:{os.fstat(stream.fileno()).st_dev}"


def _renewed(file: Path) -> Path | None:
    """Return the file of a claim's newest renewal."""
    files = (path for path in file.parent.glob("*") if path.stem == file.stem)
    renewals = [path for path in files if path.suffix[1:].isdecimal()]
    return max(renewals, key=lambda path: int(path.suffix[1:]), default=None)

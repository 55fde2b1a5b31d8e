"""Lease of an output folder: who writes there now, by the files that launcher/docs/events.md describes.

The template's trainer takes a lease. Other trainers may, and nobody is seen to use their folders otherwise.
"""

import contextlib
import os
import platform
import sys
import time
from pathlib import Path
from typing import IO

from vertex_launch.errors import FaultError, Finding, Findings
from vertex_launch.job.spec import OUTPUT
from vertex_launch.untrusted import jsons
from vertex_launch.untrusted.printable import printable
from vertex_launch.untrusted.regular_file import locked_elsewhere, open_regular, read_regular

FOLDER = "checkpoints/lease/"  # in the output folder
CURE = "choose another output folder, or wait until it ends"
EXPIRE_SECONDS, LOOK_SECONDS = 60.0, 0.5
LARGEST = 2**12  # bytes of a claim
BOOT, UPTIME = Path("/proc/sys/kernel/random/boot_id"), Path("/proc/uptime")
NONE = (OSError, ValueError, LookupError, TypeError)  # raised by a file that is no claim, or is gone


def require_free(output: Path | None, file: Path | str, below: str = "", seconds: float = EXPIRE_SECONDS) -> None:
    """Raise FaultError if a job writes to the output folder; `below`, `seconds`: as of `in_use`."""
    if output and (findings := [*in_use(output, below, seconds)]):
        raise FaultError(*findings, file=file)


def in_use(output: Path, below: str = "", seconds: float = 0) -> Findings:
    """Yield a finding for each job that writes to the output folder.

    Args:
        below: a pattern of folders in it that count in its place, such as `**/` for all, and itself.
        seconds: to wait for a renewal by a job of another machine, without which it counts as ended; a line says so.
    """
    for file in sorted(output.glob(f"{below}{FOLDER}*.json")):
        with contextlib.suppress(*NONE):
            claim, folder = read_regular(file, LARGEST), file.parents[1]
            shown = folder.relative_to(Path.cwd()) if folder.is_relative_to(Path.cwd()) else folder
            job, host, lock = (str(jsons.loads(claim)[key]) for key in ("job", "host", "lock"))
            lives = _is_locked(file, host, lock)
            if lives is None and seconds:
                whether = f"whether job {printable(job)} on {printable(host)} still writes there"
                print(f"{shown}: looking for up to {seconds:.0f} s {whether}", file=sys.stderr, flush=True)
            if _is_renewed(file, seconds) if lives is None else lives:
                renewed = _renewed(file) or file
                yield Finding(OUTPUT, sentence(str(shown), claim, time.time() - renewed.stat().st_mtime), CURE)


def sentence(folder: str, claim: bytes, seconds: float) -> str:
    """`.vertex/gcs/b/run/checkpoints is in use by job 17 on HOST since 2026-11-27 08:31 UTC (renewed 12 s ago)`"""
    job, host, since = (printable(str(jsons.loads(claim)[key])) for key in ("job", "host", "since"))
    since = since[:16].replace("T", " ")
    return f"{folder} is in use by job {job} on {host} since {since} UTC (renewed {max(seconds, 0):.0f} s ago)"


def _is_locked(file: Path, host: str, lock: str) -> bool | None:
    """Whether the writer of a claim lives; None if this machine can't tell. The trainer decides in the same way."""
    with open_regular(file) as stream:
        own = machine(stream)
        if lock == own:
            return locked_elsewhere(stream)
    boot, own_boot = lock.partition(":")[0], own.partition(":")[0]
    if host != platform.node() or boot in ("", own_boot) or not UPTIME.exists():
        return None
    # After a reboot the claim is void, but another machine may have the same name; that one renews.
    booted = time.time() - float(UPTIME.read_text().split()[0])
    return None if (_renewed(file) or file).stat().st_mtime > booted else False


def _is_renewed(file: Path, seconds: float) -> bool:
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

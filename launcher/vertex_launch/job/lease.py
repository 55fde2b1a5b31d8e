"""The lease of an output folder, which identifies the job that writes to the folder.

The template's trainer acquires a lease, and other trainers can acquire one, too. If a folder doesn't contain a lease,
the launcher treats it as free. launcher/docs/events.md describes the files of a lease.
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
CURE = "choose another output folder, or wait until that job ends"
EXPIRE_SECONDS, LOOK_SECONDS = 60.0, 0.5
LARGEST = 2**12  # bytes of a claim
BOOT, UPTIME = Path("/proc/sys/kernel/random/boot_id"), Path("/proc/uptime")
NONE = (OSError, ValueError, LookupError, TypeError)  # raised if a file isn't a claim or no longer exists


def require_free(output: Path | None, file: Path | str, below: str = "", seconds: float = EXPIRE_SECONDS) -> None:
    """Raise FaultError if a job writes to the output folder. For a description of the parameters, see `in_use`."""
    if output and (findings := [*in_use(output, below, seconds)]):
        raise FaultError(*findings, file=file)


def in_use(output: Path, below: str = "", seconds: float = 0) -> Findings:
    """Yield a finding for each job that writes to the output folder.

    Args:
        below: A glob pattern that selects the subfolders to check. The pattern `**/` selects the output folder and all
            of its subfolders.
        seconds: The time to wait for a job on another machine to renew its lease. If the job doesn't renew its lease
            in time, `in_use` treats the job as ended.
    """
    for file in sorted(output.glob(f"{below}{FOLDER}*.json")):
        with contextlib.suppress(*NONE):
            claim, folder = read_regular(file, LARGEST), file.parents[1]
            shown = folder.relative_to(Path.cwd()) if folder.is_relative_to(Path.cwd()) else folder
            job, host, lock = (str(jsons.loads(claim)[key]) for key in ("job", "host", "lock"))
            lives = _is_locked(file, host, lock)
            if lives is None and seconds:
                whether = f"whether job {printable(job)} on {printable(host)} still writes to this folder"
                print(f"{shown}: checking for up to {seconds:.0f} s {whether}", file=sys.stderr, flush=True)
            if _is_renewed(file, seconds) if lives is None else lives:
                renewed = _renewed(file) or file
                yield Finding(OUTPUT, sentence(str(shown), claim, time.time() - renewed.stat().st_mtime), CURE)


def sentence(folder: str, claim: bytes, seconds: float) -> str:
    """Return text such as `b/run has been in use by job 17 on HOST since 2026-11-27 08:31 UTC (renewed 12 s ago)`."""
    job, host, since = (printable(str(jsons.loads(claim)[key])) for key in ("job", "host", "since"))
    since = since[:16].replace("T", " ")
    return f"{folder} has been in use by job {job} on {host} since {since} UTC (renewed {max(seconds, 0):.0f} s ago)"


def _is_locked(file: Path, host: str, lock: str) -> bool | None:
    """Return whether the process that wrote a lease file is alive.

    Return None if the state of the process is unknown. The trainer applies the same rules to leases.
    """
    with open_regular(file) as stream:
        own = machine(stream)
        if lock == own:
            return locked_elsewhere(stream)
    boot, own_boot = lock.partition(":")[0], own.partition(":")[0]
    if host != platform.node() or boot in ("", own_boot) or not UPTIME.exists():
        return None
    # A reboot ends the claim. However, if a different machine with the same name owns the claim, it renews the claim.
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
    """Return an ID for the machine and file system on which a lock on this file is valid."""
    return f"{BOOT.read_text().strip() if BOOT.exists() else platform.node()}:{os.fstat(stream.fileno()).st_dev}"


def _renewed(file: Path) -> Path | None:
    """Return the file that records the latest renewal of a lease. Return None if the lease hasn't been renewed."""
    files = (path for path in file.parent.glob("*") if path.stem == file.stem)
    renewals = [path for path in files if path.suffix[1:].isdecimal()]
    return max(renewals, key=lambda path: int(path.suffix[1:]), default=None)

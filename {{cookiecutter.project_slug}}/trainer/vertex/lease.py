"""Leases an output folder to one job. The chief acquires the lease before the job reads or writes files in the folder.

The `lease` folder in the checkpoint folder contains two files per writer. The launcher also reads these files, as
launcher/docs/events.md describes.

    JOB.json  The claim: {"since": "2026-11-27T08:31:02+00:00", "job": JOB, "host": HOST, "lock": "BOOT ID:DEVICE"}.
              The writer locks this file with `flock`. If the file system doesn't support locks, "lock" is empty.
    JOB.12    An empty file that marks the twelfth renewal. Every 10 s, a new file replaces the previous one.

A writer is alive while it holds its lock. A reader on the same machine sees the lock immediately. If a writer started
before its host's last boot and hasn't renewed its lease since then, it is dead. In all other cases, a reader watches
the writer for 60 s. If the writer renews its lease during this time, it is alive. The clocks of two machines are never
compared. Each renewal creates a file with a new name, because a mounted bucket lists new names immediately. File
contents and timestamps might come from a cache that is up to 60 s old. Operations on a bucket aren't atomic. Therefore,
each writer first writes its claim, then waits until other machines see the claim, and then looks for other claims
(Lamport's bakery algorithm). The folder goes to the writer that has already renewed its lease. If no writer has renewed
its lease, the folder goes to the one with the oldest claim.
Source: Cloud Storage FUSE documentation, "Caching" and "Limitations and differences from POSIX", 2026.
"""

import contextlib
import fcntl
import json
import os
import platform
import re
import signal
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import IO, Any

from trainer.vertex import writable
from trainer.vertex.errors import TrainerError
from trainer.vertex.log import say, say_last
from trainer.vertex.storage import Storage

FOLDER = "lease"
RENEW_SECONDS, EXPIRE_SECONDS, LOOK_SECONDS, LEAVE_SECONDS = 10.0, 60.0, 0.5, 5.0
SETTLE_SECONDS = 3.0  # until all machines see a new file in a mounted bucket
LARGEST = 2**12  # bytes of a claim
NO_CLAIM = (OSError, ValueError, TypeError, AttributeError, RecursionError)  # the file is gone or isn't a claim
BOOT, UPTIME = Path("/proc/sys/kernel/random/boot_id"), Path("/proc/uptime")


@dataclass(frozen=True, order=True)
class Claim:
    """The claim of a job that writes, or is about to write, to the folder. `since` is a time on the job's own clock."""

    since: str
    job: str
    host: str
    lock: str


@contextlib.contextmanager
def held(storage: Storage, *, is_chief: bool) -> Iterator[None]:
    """If this replica is the chief, hold the output folder's lease while the block runs.

    Raises TrainerError if another job holds the lease or if the lease can't be written.
    """
    if not is_chief:
        yield
        return
    lease, before = Lease(storage, os.getpid()), signal.getsignal(signal.SIGTERM)

    def end(*args: Any) -> None:
        lease.close()
        if callable(before):
            before(*args)
        raise SystemExit(128 + signal.SIGTERM)

    signal.signal(signal.SIGTERM, end)
    is_bucket = not storage.emulated and storage.checkpoints.is_relative_to(storage.mount)
    try:
        lease.take(SETTLE_SECONDS if is_bucket else 0)
        yield
    finally:
        lease.close()
        signal.signal(signal.SIGTERM, before)


class Lease:
    """A job's lease on its output folder, held by the process with the given ID."""

    def __init__(self, storage: Storage, process: int) -> None:
        self._folder = storage.checkpoints / FOLDER
        self._job = re.sub(r"[^\w-]", "_", storage.job or f"{platform.node()}-{process}")
        self._locked = contextlib.ExitStack()
        self._number, self._stop = 0, threading.Event()
        self._thread = threading.Thread(target=self._renew, daemon=True)

    def take(self, settle: float) -> None:
        """Become the only writer, and start the renewal thread.

        Other writers see a new claim after `settle` seconds.
        """
        with writable.writing(self._folder):
            self._require_first()
            claim = self._write_claim()
            time.sleep(0 if self._number else settle)  # after a restart, other writers have already seen this claim
            self._require_first(claim)
            self._write_renewal()
        self._thread.start()

    def close(self) -> None:
        """Release the lease and remove its files. Don't call this function from the renewal thread."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(LEAVE_SECONDS)
        with contextlib.suppress(OSError):
            _remove(self._folder, self._job)
            self._folder.rmdir()
            self._folder.parent.rmdir()  # only if the run saved nothing there
        self._locked.close()

    def _require_first(self, own: Claim | None = None) -> None:
        """Wait until there is no other writer. Raises TrainerError if another writer is alive and takes precedence."""
        seen: dict[str, tuple[int, float]] = {}
        while others := [claim for claim in _claims(self._folder) if claim.job != self._job]:
            for other in others:
                renewals, is_locked = _renewals(self._folder, other.job), _is_locked(self._folder, other)
                if is_locked is None and other.job not in seen:
                    whether = f"whether job {other.job} on {other.host} still writes to this folder"
                    say(f"{self._folder.parent}: checking for up to {EXPIRE_SECONDS:.0f} s {whether}")
                before, since = seen.setdefault(other.job, (renewals, time.monotonic()))
                if is_locked is False or time.monotonic() > since + EXPIRE_SECONDS:
                    _remove(self._folder, other.job)
                elif _goes_first(other, own, renewals, is_alive=bool(is_locked) or renewals > before):
                    raise _in_use(self._folder, other, renewals)
            time.sleep(LOOK_SECONDS)

    def _write_claim(self) -> Claim:
        """Rewrite the claim's file, and lock it if the file system supports locks.

        Readers ignore an empty claim.
        """
        self._folder.mkdir(parents=True, exist_ok=True)
        self._number, file = _renewals(self._folder, self._job), self._folder / f"{self._job}.json"
        file.unlink(missing_ok=True)
        file.touch()
        stream, lock = self._locked.enter_context(file.open("r+b")), ""
        with contextlib.suppress(OSError):
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
            lock = _machine(stream)
        claim = Claim(datetime.now(timezone.utc).isoformat(timespec="seconds"), self._job, platform.node(), lock)
        file.write_text(json.dumps(asdict(claim)))  # also closes the file, which makes it visible on a bucket
        return claim

    def _write_renewal(self) -> None:
        self._number += 1
        (self._folder / f"{self._job}.{self._number}").touch()
        (self._folder / f"{self._job}.{self._number - 1}").unlink(missing_ok=True)

    def _renew(self) -> None:
        place = writable.Dispensable(self._folder)
        while not self._stop.wait(RENEW_SECONDS):
            with place.writing():
                self._write_renewal()
                if (jobs := {claim.job for claim in _claims(self._folder)}) and self._job not in jobs:
                    taken = f"{self._folder.parent}: job {min(jobs)} has taken over the folder"
                    say_last(f"{taken}, because this job didn't renew its lease for {EXPIRE_SECONDS:.0f} s", "ERROR")
                    os._exit(TrainerError.exit_code)


def _goes_first(other: Claim, own: Claim | None, renewals: int, *, is_alive: bool) -> bool:
    """Return whether another writer takes precedence over this job.

    If this job hasn't written a claim yet, every writer that is known to be alive takes precedence. Otherwise, another
    writer takes precedence only if it has renewed its lease or has an older claim.
    """
    return renewals > 0 or other < own if own else is_alive


def _claims(folder: Path) -> list[Claim]:
    found = []
    for file in folder.glob("*.json"):
        with contextlib.suppress(*NO_CLAIM):
            if file.is_file() and file.stat().st_size < LARGEST:
                claim = Claim(**{key: str(value) for key, value in json.loads(file.read_text()).items()})
                found += [claim] if claim.job == file.stem else []
    return sorted(found)


def _files(folder: Path, job: str) -> list[Path]:
    return [file for file in folder.glob("*") if file.stem == job]


def _renewals(folder: Path, job: str) -> int:
    """Return the number of times that the job has renewed its lease."""
    numbers = (file.suffix[1:] for file in _files(folder, job))
    return max((int(number) for number in numbers if number.isdecimal()), default=0)


def _is_locked(folder: Path, claim: Claim) -> bool | None:
    """Return whether a claim's writer is alive. If this machine can't determine the writer's state, return None."""
    with contextlib.suppress(OSError), (folder / f"{claim.job}.json").open("rb") as stream:
        if claim.lock == (machine := _machine(stream)):
            try:
                fcntl.flock(stream, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
            return False
        boot, own_boot = (lock.partition(":")[0] for lock in (claim.lock, machine))
        if claim.host == platform.node() and boot not in ("", own_boot):
            booted = time.time() - float(UPTIME.read_text().split()[0])
            # A different machine may have the same name. A writer on that machine keeps renewing its lease.
            return None if any(file.stat().st_mtime > booted for file in _files(folder, claim.job)) else False
    return None


def _machine(stream: IO[bytes]) -> str:
    """Return an ID for this machine and the file's mount.

    Locks on the file work only among processes with the same ID.
    """
    return f"{BOOT.read_text().strip() if BOOT.exists() else platform.node()}:{os.fstat(stream.fileno()).st_dev}"


def _remove(folder: Path, job: str) -> None:
    for file in _files(folder, job):
        file.unlink(missing_ok=True)


def _in_use(folder: Path, claim: Claim, renewals: int) -> TrainerError:
    """Return the error for a folder that another job is using.

    The seconds in the error's text are based on the file system's clock.
    """
    seconds = 0.0
    with contextlib.suppress(OSError):
        seconds = time.time() - (folder / f"{claim.job}.{renewals or 'json'}").stat().st_mtime
    since = claim.since[:16].replace("T", " ")
    return TrainerError(
        f"{folder.parent} has been in use by job {claim.job} on {claim.host} since {since} UTC (renewed"
        f" {max(seconds, 0):.0f} s ago); choose another output folder, or wait until that job ends"
    )

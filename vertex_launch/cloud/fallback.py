"""A job that waits for machines: how it starts, or is withdrawn before another one is sent in its place."""

import contextlib
import time
from collections.abc import Callable

from google.api_core.exceptions import FailedPrecondition

from vertex_launch.cloud.logs import PASSING, pace_of
from vertex_launch.cloud.service import Service
from vertex_launch.errors import FaultError
from vertex_launch.job_resource import ENDED, Resource, state

WAITING = ("", "QUEUED", "PENDING")
CANCEL_SECONDS = 600.0  # until a job that is cancelled must have ended
# google.rpc.Code of a job for which there are no machines, or of a quota that is used up.
NO_MACHINES = (8, 14)  # RESOURCE_EXHAUSTED, UNAVAILABLE


def wait_for_start(service: Service, name: str, seconds: float) -> Resource:
    """Return a job when it runs or has ended, or after so many seconds."""
    return _wait(service, name, lambda job: state(job) not in WAITING, seconds)


def found_no_machines(job: Resource) -> bool:
    """Whether a job waits still, or has ended because there were no machines for it."""
    waits = state(job) in (*WAITING, "EXPIRED")
    return waits or ("startTime" not in job and job.get("error", {}).get("code") in NO_MACHINES)


def withdraw(service: Service, name: str) -> Resource:
    """Cancel a job, and return it when it has ended.

    Raises FaultError for one that does not end: another one in its place would run beside it.
    """
    with contextlib.suppress(FailedPrecondition):  # it has just ended by itself
        service.cancel(name)
    job = _wait(service, name, lambda job: state(job) in ENDED, CANCEL_SECONDS)
    if state(job) not in ENDED:
        fault = f"was cancelled and is {state(job) or 'silent'} after {CANCEL_SECONDS:g} s"
        raise FaultError(f"{name}: {fault}; no other job was sent, as both might run")
    return job


def _wait(service: Service, name: str, until: Callable[[Resource], bool], seconds: float) -> Resource:
    """Look at a job until it is as wanted or the time is over; a service that does not answer is asked again."""
    job: Resource
    deadline, job = time.monotonic() + seconds, {"name": name}
    pause = pace_of(service).between
    while True:
        with contextlib.suppress(*PASSING):
            job = service.get(name)
        if until(job) or time.monotonic() >= deadline:
            return job
        time.sleep(min(pause, max(deadline - time.monotonic(), 0)))

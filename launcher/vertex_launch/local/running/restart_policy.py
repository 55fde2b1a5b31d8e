"""Defines the exit codes after which a replica or a whole job restarts, the number of restarts, and the grace period.

Source: Vertex AI documentation, "Understand the custom training service" and "Use Spot VMs with training", mid-2026.
"""

import math
import signal
from collections.abc import Sequence
from dataclasses import dataclass

from vertex_launch.job.spec import Job
from vertex_launch.local.running.context import Options
from vertex_launch.local.running.ended import Ended

REPLICA_RESTARTS, JOB_RETRIES, SPOT_RESTARTS = 5, 3, 6

# Documented: after an abort or an invalid memory access, the whole job is retried, not only the replica.
CRASHES = tuple(code + number for code in (0, 128) for number in (signal.SIGABRT, signal.SIGSEGV))

# Documented: a "user code exception" is permanent and ends the whole job, and a replica with any other nonzero exit
# code is restarted.
# Observed in public issues: exit code 1, from an uncaught Python exception, is permanent.
# Inferred: wrong usage (2, from argparse and click), a command that can't run (126), and a missing command (127) are
# permanent, too. Replicas with any other exit code, including 137, are restarted. The documentation lists a lack of
# memory among the permanent errors. However, exit code 137 locally occurs both after a lack of memory and after the
# loss of a machine.
USER_CODES = (1, 2, 126, 127)


@dataclass(frozen=True, kw_only=True)
class Policy:
    """The limits on a job's restarts and run time. Times are in seconds.

    With the default values, a job fails immediately when a replica fails.
    """

    replica_restarts: int = 0  # restarts in place, for each replica and each attempt of the job
    job_retries: int = 0  # retries of the whole job, after these restarts or after a crash
    preemptions: int = 0  # preemptions of machines, each of which restarts the whole job
    together: bool = False  # whether all replicas restart if one of them restarts
    retry_user_errors: bool = False  # whether any nonzero exit is restarted, which the documentation might also mean
    timeout: float = math.inf  # from the first start
    grace: float = 5  # between SIGTERM and SIGKILL
    provision: float = 0  # until the machines are ready, in each attempt of the job
    stagger: float = 0  # between the starts of two replicas

    def is_permanent(self, ended: Ended) -> bool:
        """Return whether a failed replica would fail again after a restart."""
        return ended.code in USER_CODES and not self.retry_user_errors

    def restarts_replica(self, ended: Ended, restarts: int) -> bool:
        """Return whether to restart a failed replica in place.

        `restarts` is the number of times that the replica has already been restarted.
        """
        return ended.code not in CRASHES and not self.is_permanent(ended) and restarts < self.replica_restarts

    def user_error(self, failures: Sequence[Ended], cause: Ended) -> Ended | None:
        """Return the failure that makes retrying the job pointless, or None if a retry might succeed.

        If the cause is a lost machine, a retry might succeed because the machine might become available again.
        """
        if cause.hard or cause.code in CRASHES:
            return None
        return next(filter(self.is_permanent, failures), None)


def policy(job: Job, options: Options) -> Policy:
    """Return the service's restart policy for a job.

    If the options disable restarts, return a policy without restarts.
    """
    scheduling = job.spec.scheduling
    if not options.restarts:
        return Policy(grace=options.grace, timeout=job.timeout_seconds)
    retries = not scheduling.disable_retries
    return Policy(
        replica_restarts=REPLICA_RESTARTS if retries else 0,
        job_retries=JOB_RETRIES if retries else 0,
        preemptions=SPOT_RESTARTS if job.strategy == "SPOT" else 0,
        together=scheduling.restart_job_on_worker_restart and retries,
        retry_user_errors=options.retry_user_errors,
        timeout=job.timeout_seconds,
        grace=options.grace,
        provision=0 if job.spec.persistent_resource_id else options.provision,  # its machines are already running
        stagger=options.stagger,
    )

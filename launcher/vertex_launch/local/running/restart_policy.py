"""Restarts of a replica or a whole job: how often, after which end, and with which grace.

Source: Vertex AI documentation, "Understand the custom training service" and "Use Spot VMs with training", mid 2026.
"""

import math
import signal
from collections.abc import Sequence
from dataclasses import dataclass

from vertex_launch.job.spec import Job
from vertex_launch.local.running.context import Options
from vertex_launch.local.running.ended import Ended

REPLICA_RESTARTS, JOB_RETRIES, SPOT_RESTARTS = 5, 3, 6
LONGEST_SECONDS = 7 * 24 * 3600.0  # timeout of a job that names none

# Documented: after an abort or an invalid address the whole job is tried again, not the replica alone.
CRASHES = tuple(code + number for code in (0, 128) for number in (signal.SIGABRT, signal.SIGSEGV))

# Documented: a "user code exception" is permanent and ends the whole job; any other non-zero exit is restarted.
# Measured in public issues: 1, the exit code of an uncaught Python exception, is permanent.
# Inferred: wrong usage (2, of argparse and click), a command that cannot run (126) and one that is missing (127) are
# permanent, too. All other codes restart. So does 137, though the page lists a lack of memory among the permanent
# errors: from here it looks like any lost machine.
USER_CODES = (1, 2, 126, 127)


@dataclass(frozen=True, kw_only=True)
class Policy:
    """Limits after which a job gives up; times in seconds. The defaults are a laptop's: fail at once."""

    replica_restarts: int = 0  # in place, for each replica and attempt of the job
    job_retries: int = 0  # of the whole job, after those and after a crash
    preemptions: int = 0  # of a machine; each starts the whole job again
    together: bool = False  # whether all replicas restart with one of them
    retry_user_errors: bool = False  # the other reading of the documentation: any non-zero exit is restarted
    timeout: float = math.inf  # from the first start on
    grace: float = 5  # between SIGTERM and SIGKILL
    provision: float = 0  # until the machines arrive, in each attempt of the job
    stagger: float = 0  # between the starts of two replicas

    def is_permanent(self, ended: Ended) -> bool:
        """Whether a replica would only end in the same way again."""
        return ended.code in USER_CODES and not self.retry_user_errors

    def restarts_replica(self, ended: Ended, restarts: int) -> bool:
        """Whether a replica that failed starts again in place, after so many restarts."""
        return ended.code not in CRASHES and not self.is_permanent(ended) and restarts < self.replica_restarts

    def user_error(self, failures: Sequence[Ended], cause: Ended) -> Ended | None:
        """The failure because of which a retry of the job is pointless.

        None if the cause is a lost machine: a replica may have failed for want of it, and it may come back.
        """
        if cause.hard or cause.code in CRASHES:
            return None
        return next(filter(self.is_permanent, failures), None)


def policy(job: Job, options: Options) -> Policy:
    """The service's policy for a job; a laptop's if nothing is to start again, with the job's timeout."""
    scheduling = job.spec.scheduling
    timeout = scheduling.timeout.total_seconds() if "timeout" in scheduling else LONGEST_SECONDS
    if not options.restarts:
        return Policy(grace=options.grace, timeout=timeout)
    retries = not scheduling.disable_retries
    return Policy(
        replica_restarts=REPLICA_RESTARTS if retries else 0,
        job_retries=JOB_RETRIES if retries else 0,
        preemptions=SPOT_RESTARTS if job.strategy == "SPOT" else 0,
        together=scheduling.restart_job_on_worker_restart and retries,
        retry_user_errors=options.retry_user_errors,
        timeout=timeout,
        grace=options.grace,
        provision=0 if job.spec.persistent_resource_id else options.provision,  # its machines are there
        stagger=options.stagger,
    )

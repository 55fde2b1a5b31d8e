"""The job resource that the `run` command writes. A local Vertex that uses the same state folder can show the job."""

import contextlib
import re
import time
from collections.abc import Iterator
from typing import Any

from vertex_launch.errors import FaultError
from vertex_launch.job.spec import Job, as_json
from vertex_launch.local import resource_file
from vertex_launch.local.resource_file import now
from vertex_launch.local.rpc_status import rpc_status
from vertex_launch.local.running import host
from vertex_launch.local.running.context import Context
from vertex_launch.local.running.journal import Journal
from vertex_launch.local.running.outcome import Ending, Outcome, Phase
from vertex_launch.settings import for_local

NOT_IN_A_NAME = re.compile(r"[^A-Za-z0-9_.:@-]+|^[.:@-]")


class JobRecord:
    """A job's resource and journal."""

    def __init__(self, job: Job, context: Context) -> None:
        settings = for_local(context.settings)
        self.id = str(time.time_ns() // 1000)
        self.logs = context.state_dir.logs(self.id)
        self.journal = Journal(context.state_dir.journal(self.id))
        project, region = (NOT_IN_A_NAME.sub("_", part) for part in (settings.project, settings.region))
        name = f"projects/{project}/locations/{region}/customJobs/{self.id}"
        self._file = context.state_dir.folder / f"{name}.json"
        self._resource: dict[str, Any] = {
            "displayName": job.name,
            "jobSpec": as_json(job.spec),
            "name": name,
            "createTime": now(),
        }
        self.enter("PENDING")

    def enter(self, phase: Phase) -> None:
        first = phase == "RUNNING" and "startTime" not in self._resource
        self._update(state=f"JOB_STATE_{phase}", **({"startTime": now()} if first else {}))

    def end(self, outcome: Outcome) -> None:
        if outcome.succeeded:
            self._update(state="JOB_STATE_SUCCEEDED", endTime=now())
        else:
            self.fail(outcome.status, f"{outcome.message}\nLogs: {self.logs}")

    def fail(self, status: str, message: str) -> None:
        """Record that the job failed or was canceled. `status` is the name of a google.rpc.Code value."""
        state = "CANCELLED" if status == "CANCELLED" else "FAILED"
        self._update(state=f"JOB_STATE_{state}", endTime=now(), error=rpc_status(status, message))

    def _update(self, **fields: Any) -> None:
        self._resource |= {**fields, "updateTime": now()}
        with contextlib.suppress(OSError):  # a full disk doesn't stop the job
            resource_file.write(self._file, self._resource)


@contextlib.contextmanager
def recorded(job: Job, context: Context) -> Iterator[JobRecord]:
    """Yield the record of the job that the `with` block runs. If the block raises an exception, record the error."""
    record = JobRecord(job, context)
    with contextlib.closing(record.journal):
        try:
            yield record
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt):
                record.fail("CANCELLED", f"the job {Ending.CANCELLED.value}")
            else:
                record.fail("INVALID_ARGUMENT" if isinstance(error, FaultError) else "INTERNAL", str(error))
            raise
        finally:
            host.remove_home(context.state_dir, record.id)

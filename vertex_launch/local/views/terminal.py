"""The service's jobs on the terminal: one line for each change of a job's state and for each restart.

The web page shows the same jobs as a table, with their replicas.
"""

import time
from contextlib import AbstractContextManager

from rich.console import Console
from rich.text import Text

from vertex_launch.job_resource import Resource, fault, state, style
from vertex_launch.local.api.store import Store
from vertex_launch.local.jobs.background import repeating
from vertex_launch.local.jobs.custom_jobs import Jobs
from vertex_launch.local.views.job_summary import everything, newest
from vertex_launch.printable import printable

POLL_SECONDS = 0.25
FOLLOWED = 1000  # jobs, the newest


def reports(store: Store, jobs: Jobs, console: Console) -> AbstractContextManager[None]:
    """Return a context manager; in its block another thread prints each change of a job's state and each restart."""
    states = {job["name"]: state(job) for job in newest(everything(store), FOLLOWED)}  # already known: not printed

    def report() -> None:
        while jobs.events:
            console.print(event(*jobs.events.popleft()), soft_wrap=True)
        for job in reversed(newest(everything(store), FOLLOWED)):
            if states.get(job["name"]) != state(job):
                states[job["name"]] = state(job)
                console.print(change(job), soft_wrap=True)

    return repeating(report, POLL_SECONDS)


def change(job: Resource) -> Text:
    """`12:03:04 customJobs/17 digits FAILED: workerpool0-0 exited with code 1`."""
    message = fault(job).partition("\n")[0]
    *_, collection, id = job["name"].split("/")
    head = f"{time.strftime('%H:%M:%S')} {collection}/{id} {printable(job.get('displayName', ''))} "
    shown = (state(job), style(job))
    return Text.assemble(head, shown, f": {printable(message)}" if message else "")


def event(id: str, name: str, line: str) -> Text:
    """`12:03:04 customJobs/17 digits: workerpool1-0 was preempted; the job starts again, restart 1 of 6`."""
    return Text(f"{time.strftime('%H:%M:%S')} customJobs/{id} {printable(name)}: {printable(line)}")

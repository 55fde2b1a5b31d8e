"""The service's jobs on the terminal: one line for each change of a job's state and for each restart.

The web page shows the same jobs as a table, with their replicas.
"""

import contextlib
import threading
import time
from collections.abc import Iterator, Mapping, Sequence

from rich.console import Console
from rich.text import Text

from vertex_launch.local.api.store import Store
from vertex_launch.local.jobs.custom_jobs import Jobs
from vertex_launch.local.views.job_summary import JobSummary, summaries

POLL_SECONDS = 0.25
FOLLOWED = 1000  # jobs, the newest
STYLES = {
    "QUEUED": "yellow",
    "PENDING": "yellow",
    "RUNNING": "bold blue",
    "SUCCEEDED": "green",
    "FAILED": "bold red",
    "EXPIRED": "bold red",
}


@contextlib.contextmanager
def reporting(store: Store, jobs: Jobs, console: Console) -> Iterator[None]:
    """Print what happens to jobs, from another thread, until the block ends."""
    closing = threading.Event()
    known = _states(summaries(store, jobs, FOLLOWED))  # not news

    def follow(states: Mapping[str, str]) -> None:
        closed = False
        while not closed:
            closed = closing.wait(POLL_SECONDS)
            states = report(store, jobs, console, states)

    thread = threading.Thread(target=follow, args=(known,), name="reporting", daemon=True)
    thread.start()
    try:
        yield
    finally:
        closing.set()
        thread.join()


def report(store: Store, jobs: Jobs, console: Console, before: Mapping[str, str]) -> Mapping[str, str]:
    """Print restarts and changes of state since the states `before`; returns the states now, by job id."""
    while jobs.events:
        console.print(event(*jobs.events.popleft()), soft_wrap=True)
    found = summaries(store, jobs, FOLLOWED)
    for job in reversed(found):
        if before.get(job.id) != job.state:
            console.print(change(job), soft_wrap=True)
    return _states(found)


def change(job: JobSummary) -> Text:
    """`12:03:04 customJobs/17 digits FAILED: workerpool0-0 exited with code 1`."""
    fault = f": {printable(job.error.partition(chr(10))[0])}" if job.error else ""
    head = f"{time.strftime('%H:%M:%S')} {job.collection}/{job.id} {printable(job.name)} "
    return Text.assemble(head, (job.state, STYLES.get(job.state, "")), fault)


def event(id: str, name: str, line: str) -> Text:
    """`12:03:04 customJobs/17 digits: workerpool1-0 was preempted; the job starts again, restart 1 of 6`."""
    return Text(f"{time.strftime('%H:%M:%S')} customJobs/{id} {printable(name)}: {printable(line)}")


def printable(text: str) -> str:
    """Anybody can choose a name or a message, so no character of it may steer the terminal."""
    return "".join(character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in text)


def _states(found: Sequence[JobSummary]) -> dict[str, str]:
    return {job.id: job.state for job in found}

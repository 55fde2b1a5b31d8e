"""The service's jobs on the terminal: one line for each change of a job's state and for each restart.

The web page shows the same jobs as a table, with their replicas.
"""

import threading
import time
from types import TracebackType
from typing import Self

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


class JobReporter:
    """Prints what happens to jobs for as long as it is open."""

    def __init__(self, store: Store, jobs: Jobs, console: Console) -> None:
        self._store = store
        self._jobs = jobs
        self._console = console
        self._states: dict[str, str] = {}
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="job-reporter", daemon=True)

    def __enter__(self) -> Self:
        self._states = {job.id: job.state for job in self._summaries()}  # known states are not news
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closing.set()
        self._thread.join()

    def _follow(self) -> None:
        while not self._closing.wait(POLL_SECONDS):
            self._report()
        self._report()

    def _report(self) -> None:
        while self._jobs.events:
            self._console.print(event(*self._jobs.events.popleft()), soft_wrap=True)
        found = self._summaries()
        for job in reversed(found):
            if self._states.get(job.id) != job.state:
                self._console.print(change(job), soft_wrap=True)
        self._states = {job.id: job.state for job in found}

    def _summaries(self) -> list[JobSummary]:
        return summaries(self._store, self._jobs, FOLLOWED)


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

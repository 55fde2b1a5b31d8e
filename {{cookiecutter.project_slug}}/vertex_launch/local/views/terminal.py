"""The service's jobs on the terminal: a table that is kept up to date, or a line for each change of state."""

import threading
import time
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from vertex_launch.local.api.store import Store
from vertex_launch.local.jobs.custom_jobs import ENDED, Jobs
from vertex_launch.local.running.replica_state import Status
from vertex_launch.local.views.job_summary import JobSummary, briefs

POLL_SECONDS = 0.25
LOOKED_AT = 1000  # jobs, the newest
NEXT_QUEUED, LAST_ENDED = 3, 5  # jobs that the table still shows
NAMED_REPLICAS = 4  # more are only counted
FRAME_LINES = 5  # of the table and of the prompt around it
FULL_WIDTH = 100  # columns of a terminal on which ids have room

STYLES = {
    "QUEUED": "yellow",
    "PENDING": "yellow",
    "RUNNING": "bold blue",
    "SUCCEEDED": "green",
    "FAILED": "bold red",
    "EXPIRED": "bold red",
    "running": "blue",
    "waiting": "yellow",
    "frozen": "magenta",
    "ended": "dim",
}


class View:
    """Shows jobs for as long as it is open.

    On a terminal that is a table below whatever else is printed; elsewhere one line for each change. Restarts are lines
    in both.
    """

    def __init__(self, store: Store, jobs: Jobs, console: Console) -> None:
        self._store = store
        self._jobs = jobs
        self._console = console
        self._live = Live(console=console, auto_refresh=False) if console.is_terminal else None
        self._states: dict[str, str] = {}
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="view", daemon=True)

    def __enter__(self) -> Self:
        self._states = {brief.id: brief.state for brief in self._look()}  # these are no news
        if self._live:
            self._live.start()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closing.set()
        self._thread.join()
        if self._live:
            self._live.stop()

    def _follow(self) -> None:
        while not self._closing.wait(POLL_SECONDS):
            self._refresh()
        self._refresh()

    def _refresh(self) -> None:
        while self._jobs.events:
            self._console.print(event(*self._jobs.events.popleft()), soft_wrap=True)
        seen = self._look()
        if self._live:
            self._live.update(table(seen, self._console.width, self._console.height), refresh=True)
            return
        for brief in reversed(seen):
            if self._states.get(brief.id) != brief.state:
                self._console.print(change(brief), soft_wrap=True)
        self._states = {brief.id: brief.state for brief in seen}

    def _look(self) -> list[JobSummary]:
        return briefs(self._store, self._jobs, LOOKED_AT)


def change(brief: JobSummary) -> Text:
    """`12:03:04 customJobs/17 digits FAILED: workerpool0-0 exited with code 1`."""
    clock = time.strftime("%H:%M:%S")
    fault = f": {printable(brief.error.partition(chr(10))[0])}" if brief.error else ""
    head = f"{clock} {brief.collection}/{brief.id} {printable(brief.name)} "
    return Text.assemble(head, (brief.state, STYLES.get(brief.state, "")), fault)


def event(id: str, name: str, line: str) -> Text:
    """`12:03:04 customJobs/17 digits: workerpool1-0 was preempted; the job starts again, restart 1 of 6`."""
    return Text(f"{time.strftime('%H:%M:%S')} customJobs/{id} {printable(name)}: {printable(line)}")


def table(seen: Sequence[JobSummary], width: int, height: int) -> Table:
    """The jobs that have not ended and the last that have, newest first, as many as there is room for."""
    rows = chosen(seen, max(height - FRAME_LINES, 3))
    title = summary(seen, len(seen) - len(rows))
    grid = Table(box=None, title=title, title_justify="left", title_style="", pad_edge=False, expand=True)
    grid.add_column("State", no_wrap=True)
    grid.add_column("Job", no_wrap=True, overflow="ellipsis", ratio=2)
    if width >= FULL_WIDTH:
        grid.add_column("Id", no_wrap=True)
    grid.add_column("Age", no_wrap=True, justify="right")
    grid.add_column("Replicas", no_wrap=True, overflow="ellipsis", ratio=3)
    for brief in rows:
        state = Text(brief.state, STYLES.get(brief.state, ""))
        id = [Text(brief.id, "dim")] if width >= FULL_WIDTH else []
        grid.add_row(state, Text(printable(brief.name)), *id, age(brief), parts(brief))
    return grid


def chosen(seen: Sequence[JobSummary], room: int) -> list[JobSummary]:
    """Those worth a line, if there is room: what runs, the next in the queue, and the last that have ended."""
    ended = [brief for brief in seen if _ended(brief)][:LAST_ENDED]
    queued = [brief for brief in reversed(seen) if brief.state == "QUEUED"][:NEXT_QUEUED]
    running = [brief for brief in seen if not _ended(brief) and brief.state != "QUEUED"]
    kept = {brief.id for brief in [*running, *queued, *ended][:room]}
    return [brief for brief in seen if brief.id in kept]


def summary(seen: Sequence[JobSummary], hidden: int) -> Text:
    """`196 queued, 2 running, 12 succeeded; 200 of them not shown`."""
    counted = Counter(brief.state for brief in seen).most_common()
    text = ", ".join(f"{count} {state.lower()}" for state, count in counted) or "no jobs yet"
    return Text(f"{text}; {hidden} of them not shown" if hidden else text, "dim")


def parts(brief: JobSummary) -> Text:
    """What a job consists of just now: its replicas by name, many only by number; or its trials; or its fault."""
    if brief.error:
        return Text(printable(brief.error.partition("\n")[0]), "red")
    if brief.trial_count:
        states = [trial.state for trial in brief.trials]
        return _counted(states).append(f" of at most {brief.trial_count} trials")
    if len(brief.replicas) > NAMED_REPLICAS:
        text = _counted([replica.state for replica in brief.replicas])
        restarts = sum(replica.restarts for replica in brief.replicas)
        return text.append(f", restarts: {restarts}" if restarts else "")
    return Text("  ").join(_cell(replica) for replica in brief.replicas)


def age(brief: JobSummary) -> str:
    """Time since the job's creation, in its largest unit."""
    if not brief.created:
        return ""
    seconds = max((datetime.now(UTC) - datetime.fromisoformat(brief.created)).total_seconds(), 0)
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds // size:.0f} {unit}"
    return f"{seconds:.0f} s"


def printable(text: str) -> str:
    """Names and messages are anybody's: nothing in them may steer the terminal."""
    return "".join(character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in text)


def _cell(replica: Status) -> Text:
    """`1-0 running (restarts: 2)`."""
    restarts = f" (restarts: {replica.restarts})" if replica.restarts else ""
    state = (replica.state, STYLES.get(replica.state, ""))
    return Text.assemble(f"{replica.name.removeprefix('workerpool')} ", state, restarts)


def _counted(states: Sequence[str]) -> Text:
    """`56 running, 8 waiting`."""
    counted = Counter(states).most_common()
    cells = [Text.assemble(f"{count} ", (state.lower(), STYLES.get(state, ""))) for state, count in counted]
    return Text(", ").join(cells)


def _ended(brief: JobSummary) -> bool:
    return f"JOB_STATE_{brief.state}" in ENDED

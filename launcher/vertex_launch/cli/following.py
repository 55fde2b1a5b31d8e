"""Follows a job in the terminal and prints its state changes, replica output, progress, and result.

The `logs` command follows a job that was submitted earlier.
"""

import json
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any

from cyclopts import Parameter
from rich.console import Console, RenderableType
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text

from vertex_launch import program
from vertex_launch.cli.cloud_options import SentJobOptions
from vertex_launch.cli.output import complain, console, errors
from vertex_launch.cloud import jobs, logs
from vertex_launch.cloud.logs import Back, Changed, Line, Log, Lost, follow, once
from vertex_launch.cloud.refusals import CloudError, google_errors
from vertex_launch.cloud.service import Service
from vertex_launch.errors import FaultError, did_you_mean
from vertex_launch.job.job_resource import ENDED, Resource, fault, id_of, moment, run_spec, state, style, trial_ids
from vertex_launch.job.spec import CHIEF_REPLICA
from vertex_launch.local.running import events
from vertex_launch.local.running.lines import ERRORS
from vertex_launch.local.running.signals import signals_as_exceptions
from vertex_launch.plan.formatting import clock, duration, usd
from vertex_launch.untrusted.printable import printable

EXIT_CODES = {"SUCCEEDED": 0, "FAILED": 1, "PARTIALLY_SUCCEEDED": 1, "CANCELLED": 3, "EXPIRED": 4}
UNSEEN, DETACHED = 5, 130  # the job continues, but it can't be read, or the user stopped following it
PLAIN = re.compile("[A-Za-z0-9 _-]*")  # a pattern that matches only its own text
BETWEEN = re.compile(r"\.[*+?]?|[\^$]")  # wildcards and anchors that may separate two plain texts
AGO = re.compile("([0-9]+)([smhd])")
UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}
MOST_SHOWN = 20  # replicas

Wanted = Callable[[Line], object]


@dataclass(frozen=True, kw_only=True)
class LogsOptions(SentJobOptions):
    follow: Annotated[bool, Parameter(alias="-f", help="Follow the log until the job ends.")] = False
    since: Annotated[
        str, Parameter(metavar="TIME", help="Print only lines since a date and time, or since 10m, 2h, or 1d ago.")
    ] = ""
    replica: Annotated[
        str, Parameter(metavar="NAME", help="Print only the lines of this replica, such as workerpool0-0.")
    ] = ""
    grep: Annotated[
        str, Parameter(metavar="PATTERN", allow_leading_hyphen=True, help="Print only lines that match PATTERN.")
    ] = ""
    json: Annotated[bool, Parameter(help="Print one JSON object for each line.")] = False

    def act(self) -> None:
        search, since = pattern(self.grep).search, earliest(self.since, datetime.now(UTC))
        printed = 0
        with self.sent() as (service, job):
            known_replica(self.replica, job)
            # If possible, the service filters the lines. With --follow, the progress bar needs the other lines, too.
            log = Log(service, since, self.replica, "" if self.follow else part(self.grep))
            if self.follow:
                raise SystemExit(follow_to_end(service, job["name"], log, lambda line: search(line.text), self.json))
            for event in once(service, job, log):
                if isinstance(event, Lost):
                    errors.print(service_line(event))
                elif search(event.text):
                    print_line(event, job, self.json)
                    printed += 1
        if not (printed or self.json):
            complain(f"the log has no such line{'' if state(job) in ENDED else ' yet'}", style="yellow")


def known_replica(name: str, job: Resource) -> None:
    """Raise FaultError if the job doesn't have a replica with this name."""
    pools = enumerate(run_spec(job).get("workerPoolSpecs", ()))
    names = [f"workerpool{pool}-{index}" for pool, spec in pools for index in range(int(spec.get("replicaCount", 0)))]
    if name and names and name not in names:
        raise FaultError(
            f"--replica {name}: the job doesn't have this replica; {did_you_mean(name, names[:MOST_SHOWN])}"
        )


def pattern(text: str) -> re.Pattern[str]:
    """Compile the --grep pattern. Raises FaultError if the pattern isn't valid."""
    try:
        return re.compile(text)
    except re.error as error:
        raise FaultError(f"--grep {text}: {error}; to match a special character literally, put \\ before it") from None


def part(pattern: str) -> str:
    """Return the longest literal text that every match of the pattern contains.

    If the pattern contains more than simple wildcards and anchors, return "".
    """
    parts = BETWEEN.split(pattern)
    return max(parts, key=len) if all(map(PLAIN.fullmatch, parts)) else ""


def earliest(text: str, now: datetime) -> datetime | None:
    """Return the time that --since specifies. If the value is empty, return None.

    Raises FaultError if the value isn't a valid time.
    """
    try:
        if ago := AGO.fullmatch(text):
            return now - timedelta(**{UNITS[ago[2]]: int(ago[1])})
        return datetime.fromisoformat(text).astimezone() if text else None
    except (ValueError, OverflowError):
        raise FaultError(
            f"--since {text} isn't a valid time; use a value such as 10m, 2h, 1d, or 2026-11-23T12:30"
        ) from None


def follow_to_end(
    service: Service, name: str, log: Log, wanted: Wanted = lambda line: True, as_json: bool = False
) -> int:
    """Print a job's events until it ends, and return the exit code for its final state.

    If the user presses Ctrl-C, the job continues, and this function prints the command to follow it again. If
    `as_json` is true, print only JSON lines to stdout, and print all other output to stderr.
    """
    job: Resource = {"name": name}
    output = errors if as_json else console
    try:
        with google_errors(service.settings), signals_as_exceptions(), Screen(output, as_json) as screen:
            for event in follow(service, name, log):
                if isinstance(event, Changed):
                    before, job = state(job), event.job
                    screen.job = job
                    if state(job) not in (before, *ENDED):  # the final state is printed last
                        output.print(headline(job, service))
                elif isinstance(event, Line):
                    show(event, job, screen, service, wanted)
                else:
                    output.print(service_line(event))
    except (KeyboardInterrupt, CloudError) as error:
        unseen = isinstance(error, CloudError)
        if unseen:
            complain(str(error))
        if state(job) not in ENDED:
            errors.print(detached(service, name))
            return UNSEEN if unseen else DETACHED
    output.print(headline(job, service))
    with google_errors(service.settings):
        print_cause(service, job)
    return EXIT_CODES.get(state(job), 1)


def show(line: Line, job: Resource, screen: "Screen", service: Service, wanted: Wanted) -> None:
    """Print a log line, and update the progress bar. Tuning jobs don't have a progress bar."""
    if wanted(line):
        print_line(line, job, screen.as_json)
    moves = not screen.disable and "studySpec" not in job and line.replica == CHIEF_REPLICA
    if moves and (steps := events.steps(line.fields)):
        screen.move(steps, so_far(job, service))


def print_line(line: Line, job: Resource, as_json: bool) -> None:
    """Print a log line such as `12:03:04 [workerpool0-0] step 50/600`, or, if `as_json` is true, a JSON object.

    If the line belongs to a trial, print the trial's ID before the replica's name.
    """
    if as_json:
        origin = {"time": line.time.isoformat(), "replica": line.replica, "job": line.job, "severity": line.severity}
        print(json.dumps({"message": line.text, **line.fields, **origin}), flush=True)
        return
    trial = printable(line.trial) or trial_ids(job).get(line.job)
    whose = f"trial {trial} " if trial else ""
    console.print(Text(f"{clock(line.time)} {whose}{line}", style="red" if line.severity in ERRORS else ""))


class Screen(Progress):
    """The terminal output, which consists of log lines and a progress bar below them.

    Until the first step, the job's state, wait time, and run time appear instead of the progress bar.
    """

    def __init__(self, output: Console, as_json: bool) -> None:
        self.as_json = as_json
        self.job: Resource = {}
        step = TextColumn("step {task.completed:.0f}/{task.total:.0f}")
        more = (TextColumn(f"{{task.fields[{name}]}}", markup=False) for name in ("metric", "cost"))
        columns = (BarColumn(), step, TimeRemainingColumn(), *more)
        super().__init__(*columns, console=output, disable=as_json or not output.is_terminal, transient=True)

    def get_renderables(self) -> Iterable[RenderableType]:
        if self.tasks or not state(self.job):
            return super().get_renderables()
        return [Text.assemble((state(self.job), style(self.job)), *(f", {part}" for part in times(self.job)))]

    def move(self, steps: events.Steps, cost: str) -> None:
        """Update the progress bar. If `steps` doesn't contain a metric, keep showing the previous metric."""
        metric = steps.metric or (self.tasks[0].fields["metric"] if self.tasks else "")
        bar: dict[str, Any] = {"completed": steps.done, "total": steps.total, "metric": metric, "cost": cost}
        self.update(self.task_ids[0] if self.tasks else self.add_task("", **bar), **bar)


def headline(job: Resource, service: Service) -> Text:
    """Return a status line such as `12:03:04 run RUNNING: waited 2 min 3 s`.

    If the job has started, the status line includes its run time and cost.
    """
    parts = times(job)
    if jobs.ran(job, datetime.now(UTC)) >= 1:
        parts.append(so_far(job, service))
    at = moment(job, "endTime") or datetime.now(UTC)
    name, shown = printable(str(job.get("displayName", ""))), (state(job), style(job))
    return Text.assemble(f"{clock(at)} {name} ", shown, f": {', '.join(filter(None, parts))}" if parts else "")


def times(job: Resource) -> list[str]:
    """Return a job's wait time and run time, such as `waited 2 min 3 s` and `runs for 12 s`."""
    now = datetime.now(UTC)
    waited, ran = jobs.waited(job, now), jobs.ran(job, now)
    runs = "ran" if state(job) in ENDED else "runs for"
    parts = ((f"waited {duration(waited)}", waited), (f"{runs} {duration(ran)}", ran))
    return [part for part, seconds in parts if seconds >= 1]


def so_far(job: Resource, service: Service) -> str:
    """Return a job's cost so far, such as `about $1.20`. If a price is unknown, return ""."""
    cost = jobs.cost(job, service.settings.catalog, datetime.now(UTC))
    return f"about {usd(cost.usd)}{' in the cloud' if service.endpoint else ''}" if cost else ""


def print_cause(service: Service, job: Resource) -> None:
    """Print the service's explanation of why a job failed.

    If the explanation doesn't contain a traceback, also print the last error lines of the replica that failed first.
    """
    message = fault(job).strip()
    if message:
        complain(message)
    if state(job) != "FAILED" or logs.TRACEBACK in message:
        return
    if lines := [line for line in logs.cause(service, job) if line.text not in message.splitlines()]:
        complain(f"the last errors of {lines[0].replica}:")
        for line in lines:
            errors.print(Text(line.text))


def detached(service: Service, name: str) -> str:
    """Return a message with the commands to follow or stop a job that is still running."""
    id = id_of(name)
    return (
        f"\nthe job continues; follow it with: {command(service, 'logs', id, '--follow')}\n"
        f"stop it with: {command(service, 'cancel', id)}\n{service.page(name)}"
    )


def command(service: Service, *words: str) -> str:
    """Return a vertex-launch command that uses the same project and region as the service."""
    settings = service.settings
    typed = (key for key in ("project", "region") if settings.origin(key).startswith("--"))
    return " ".join((program.NAME, *words, *(f"--{key} {getattr(settings, key)}" for key in typed)))


def service_line(event: Lost | Back) -> Text:
    now = clock(datetime.now(UTC))
    if isinstance(event, Back):
        return Text(f"{now} the service responds again", style="yellow")
    return Text(f"{now} {printable(event.reason)}; retrying", style="yellow")

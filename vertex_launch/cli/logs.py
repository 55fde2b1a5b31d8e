"""The command `logs`: what the replicas of a job print."""

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Annotated

import typer

from vertex_launch.cli.cloud_options import SentJobOptions
from vertex_launch.cli.following import follow_to_end, print_line, service_line
from vertex_launch.cli.output import complain, errors
from vertex_launch.cloud.logs import Log, Lost, once
from vertex_launch.errors import FaultError, did_you_mean
from vertex_launch.job_resource import ENDED, Resource, run_spec, state

AGO = re.compile("([0-9]+)([smhd])")
MOST_SHOWN = 20  # replicas
UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}


@dataclass(frozen=True, kw_only=True)
class LogsOptions(SentJobOptions):
    """Print what the replicas of a job printed, merged by time; --follow ends with the job, and with its exit code."""

    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until the job has ended.")] = False
    since: Annotated[str, typer.Option(metavar="TIME", help="Not before: 10m, 2h or 1d ago, or a date and time.")] = ""
    replica: Annotated[str, typer.Option(metavar="NAME", help="Of one replica alone, such as workerpool0-0.")] = ""
    grep: Annotated[str, typer.Option(metavar="PATTERN", help="Only lines in which this is found.")] = ""
    json: Annotated[bool, typer.Option("--json", help="One JSON object for each line.")] = False

    def act(self) -> None:
        search, since = pattern(self.grep).search, earliest(self.since, datetime.now(UTC))
        printed = 0
        with self.sent() as (service, job):
            known_replica(self.replica, job)
            log = Log(service, since, self.replica)
            if self.follow:
                raise typer.Exit(follow_to_end(service, job["name"], log, lambda line: search(line.text), self.json))
            for event in once(service, job, log):
                if isinstance(event, Lost):
                    errors.print(service_line(event))
                elif search(event.text):
                    print_line(event, job, self.json)
                    printed += 1
        if not (printed or self.json):
            complain(f"no such line is in the log{'' if state(job) in ENDED else ' yet'}", style="yellow")


def known_replica(name: str, job: Resource) -> None:
    """Raise FaultError for the name of a replica that the job lacks."""
    pools = enumerate(run_spec(job).get("workerPoolSpecs", ()))
    names = [f"workerpool{pool}-{index}" for pool, spec in pools for index in range(int(spec.get("replicaCount", 0)))]
    if name and names and name not in names:
        raise FaultError(f"--replica {name}: the job has no such replica; {did_you_mean(name, names[:MOST_SHOWN])}")


def pattern(text: str) -> re.Pattern[str]:
    """Compile --grep; raises FaultError."""
    try:
        return re.compile(text)
    except re.error as error:
        raise FaultError(f"--grep {text}: {error}; write \\ before a character that is meant as it is") from None


def earliest(text: str, now: datetime) -> datetime | None:
    """Return the moment that --since means, None without one; raises FaultError."""
    try:
        if ago := AGO.fullmatch(text):
            return now - timedelta(**{UNITS[ago[2]]: int(ago[1])})
        return datetime.fromisoformat(text).astimezone() if text else None
    except (ValueError, OverflowError):
        raise FaultError(f"--since {text}: is no time; write 10m, 2h, 1d, or 2026-11-23T12:30") from None

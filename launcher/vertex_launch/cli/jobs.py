"""The `jobs`, `status`, `cost`, and `cancel` commands, which list jobs, show a job's state and cost, and stop a job."""

import json
from collections.abc import Iterator
from dataclasses import KW_ONLY, dataclass
from datetime import UTC, datetime
from enum import Enum
from typing import Annotated

from cyclopts import Parameter
from cyclopts.validators import Number
from rich.table import Column, Table
from rich.text import Text

from vertex_launch.cli.cloud_options import CloudOptions, NamedJob, SentJobOptions
from vertex_launch.cli.following import EXIT_CODES, command, headline, print_cause
from vertex_launch.cli.output import complain, confirmed, console, interrupted, print_table
from vertex_launch.cli.trials_table import table as trials_table
from vertex_launch.cloud import jobs
from vertex_launch.cloud.jobs import Cost
from vertex_launch.cloud.service import Service
from vertex_launch.errors import FaultError
from vertex_launch.facts.catalog import Catalog
from vertex_launch.job import job_resource
from vertex_launch.job.job_resource import ENDED, Resource, id_of, kind, moment, run_spec, same_result, state, style
from vertex_launch.local.running.signals import signals_as_exceptions
from vertex_launch.plan.formatting import clock, duration, usd
from vertex_launch.untrusted.printable import printable

State = Enum("State", "QUEUED PENDING RUNNING SUCCEEDED FAILED CANCELLING CANCELLED EXPIRED")  # upper or lower case


@dataclass(frozen=True, kw_only=True)
class JobsOptions(CloudOptions):
    state: Annotated[State | None, Parameter(help="List only jobs in this state.")] = None
    limit: Annotated[int, Parameter(validator=Number(gte=1, lte=1000), help="Maximum number of jobs to list.")] = 20
    json: Annotated[bool, Parameter(help="Print the resources as a JSON list.")] = False

    def act(self) -> None:
        wanted = self.state.name if self.state else ""
        with self.cloud() as service:
            resources = jobs.newest(service, self.limit, wanted)
        if self.json:
            print(json.dumps(resources, indent=2))
        elif resources:
            print_table(table_of_jobs(resources, service.settings.catalog))
        else:
            console.print(f"{service.place} has no {f'{wanted} ' if wanted else ''}job")


def table_of_jobs(resources: list[Resource], catalog: Catalog) -> Table:
    now = datetime.now(UTC)
    number, stands = (Column(name, no_wrap=True, min_width=width) for name, width in (("job", 19), ("state", 9)))
    shown = Table(number, "name", stands, "created", "waited", "ran", "about", box=None, header_style="bold")
    for job in resources:
        cost, created = jobs.cost(job, catalog, now), moment(job, "createTime")
        noun = "" if kind(job) == "custom job" else f" ({kind(job)})"
        shown.add_row(
            id_of(job["name"]),
            Text(printable(str(job.get("displayName", ""))) + noun),
            Text(state(job), style=style(job)),
            f"{created.astimezone():%Y-%m-%d %H:%M}" if created else "",
            duration(jobs.waited(job, now)),
            duration(jobs.ran(job, now)) if job.get("startTime") else "",
            usd(cost.usd) if cost else "?",
        )
    return shown


@dataclass(frozen=True, kw_only=True)
class StatusOptions(SentJobOptions):
    json: Annotated[bool, Parameter(help="Print the resource as JSON.")] = False

    def act(self) -> None:
        with self.sent() as (service, job):
            if self.json:
                print(json.dumps(job, indent=2))
            else:
                console.print(headline(job, service))
                for key, value in details(job, service):
                    console.print(f"  {key:<8} {printable(value)}")
                if job.get("trials"):
                    print_table(trials_table(job, service.list("customJobs", 'state="JOB_STATE_CANCELLED"', 1000)))
                if same := same_result(job):
                    complain(same, style="yellow")
                print_cause(service, job)
        raise SystemExit(EXIT_CODES.get(state(job), 0))


def details(job: Resource, service: Service) -> Iterator[tuple[str, str]]:
    """Yield the name and value of each line that the `status` command prints below the status line."""
    spec = run_spec(job)
    yield kind(job).rpartition(" ")[2], job["name"]
    for index, pool in enumerate(spec.get("workerPoolSpecs", ())):
        yield f"pool {index}", job_resource.machines(pool)
    if output := spec.get("baseOutputDirectory", {}).get("outputUriPrefix"):
        yield "output", output
    if cost := jobs.cost(job, service.settings.catalog, datetime.now(UTC)):
        rate = f"{usd(cost.per_hour.usd)} per hour{' and trial' if job.get('trials') else ''}"
        yield "cost", f"about {usd(cost.usd)}, at {rate} ({cost.per_hour.certainty}: {cost.per_hour.source})"
    yield "log", command(service, "logs", id_of(job["name"]))
    yield "page", service.page(job["name"])


@dataclass(frozen=True, kw_only=True)
class CostOptions(SentJobOptions):
    json: Annotated[bool, Parameter(help="Print the cost as JSON.")] = False

    def act(self) -> None:
        with self.sent() as (service, job):
            cost = jobs.cost(job, service.settings.catalog, datetime.now(UTC))
        if cost is None:
            raise FaultError(f"{job['name']}: the price of a machine is unknown; add it under [prices] in vertex.toml")
        price = cost.per_hour
        if self.json:
            print(json.dumps({"job": job["name"], "usd": cost.usd, "hours": cost.hours, "per_hour": price.usd}))
            return
        console.print(headline(job, service))
        print_table(table_of_cost(cost))
        console.print(f"{price.certainty}: {price.source}; the billed amount might differ")


def table_of_cost(cost: Cost) -> Table:
    shown = Table("machines", "per hour", "for", "about", box=None, header_style="bold")
    time = duration(3600 * cost.hours)
    for row in cost.rows:
        shown.add_row(str(row), usd(row.usd or 0), time, usd(cost.hours * (row.usd or 0)))
    if len(cost.rows) > 1:
        shown.add_row("total", usd(cost.per_hour.usd), time, usd(cost.usd))
    return shown


@dataclass(frozen=True)
class CancelOptions(CloudOptions):
    job: NamedJob
    _: KW_ONLY
    yes: Annotated[bool, Parameter(help="Don't ask for confirmation.")] = False

    def act(self) -> None:
        message = "no job was stopped" if self.yes else "no job was stopped; to skip the confirmation, add --yes"
        with self.cloud() as service, signals_as_exceptions():
            with interrupted(message):
                job = jobs.running(service, self.job)
                name, id = job["name"], id_of(job["name"])
                console.print(headline(job, service))
                console.print(f"{name}, created {clock(moment(job, 'createTime'))}")
                if state(job) in ENDED:
                    console.print("the job has already ended, so it wasn't stopped")
                    return
                if not (self.yes or confirmed("Stop the job?")):
                    raise SystemExit(1)
            with interrupted(
                f"the job might have been stopped; to check its state, run: {command(service, 'status', id)}"
            ):
                service.cancel(name)
        console.print(f"the job was asked to stop; follow it with: {command(service, 'logs', id, '--follow')}")

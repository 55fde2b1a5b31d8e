"""The command `status`: how one job stands."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated

import typer

from vertex_launch.cli.cloud_options import SentJobOptions
from vertex_launch.cli.following import EXIT_CODES, again, headline, print_cause
from vertex_launch.cli.output import console, print_table
from vertex_launch.cloud import jobs
from vertex_launch.cloud.service import Service
from vertex_launch.job_resource import KINDS, Resource, collection_of, id_of, machines, run_spec, state
from vertex_launch.plan.formatting import usd
from vertex_launch.printable import printable
from vertex_launch.trials_table import table


@dataclass(frozen=True, kw_only=True)
class StatusOptions(SentJobOptions):
    """Show how a job stands, what it has cost, and why it failed; the exit code is that of its state."""

    json: Annotated[bool, typer.Option("--json", help="The resource itself.")] = False

    def act(self) -> None:
        with self.sent() as (service, job):
            if self.json:
                print(json.dumps(job, indent=2))
            else:
                show(job, service)
        raise typer.Exit(EXIT_CODES.get(state(job), 0))


def show(job: Resource, service: Service) -> None:
    """Print it for a person."""
    console.print(headline(job, service))
    for key, value in details(job, service):
        console.print(f"  {key:<8} {printable(value)}", markup=False)
    if job.get("trials"):
        print_table(table(job, {}))
    print_cause(service, job)


def details(job: Resource, service: Service) -> Iterator[tuple[str, str]]:
    """Name and value of each line."""
    spec = run_spec(job)
    yield KINDS[collection_of(job["name"])].rpartition(" ")[2], job["name"]
    for index, pool in enumerate(spec.get("workerPoolSpecs", ())):
        yield f"pool {index}", machines(pool)
    if output := spec.get("baseOutputDirectory", {}).get("outputUriPrefix"):
        yield "output", output
    if cost := jobs.cost(job, service.settings.catalog, datetime.now(UTC)):
        rate = f"{usd(cost.per_hour.usd)} per hour{' and trial' if job.get('trials') else ''}"
        yield "cost", f"about {usd(cost.usd)}, at {rate} ({cost.per_hour.certainty}: {cost.per_hour.source})"
    yield "log", again(service, "logs", id_of(job["name"]))
    yield "page", service.page(job["name"])
